/* Epochs agreed in band, with fence, death of a job, failure and restart of the switch, death and replacement of the
 * controller. One place at one switch. Two jobs of two ranks; STEPS steps of one operation.
 *
 *   job 0: epoch 0 grants the tree, epoch 1 takes it back, epoch 2 changes nothing (a new plan)
 *   job 1: epoch 0 has no tree, epoch 1 grants it
 *
 * Bounds: one communicator, one operation per step, one grant per job, at most one switch failure, one dead rank (of
 * job 0), REPLACED successors of the controller without memory; any epoch reaches a rank at any time, in any order, or
 * never. A job with a dead rank need not end; every other one must (an invalid end state is somebody who waits).
 *
 * Switched on by name: RENEWED (epoch 2 of job 0), FENCE, DEATH, SWITCH, REPLACED=n.
 * Mutations: M_OWN M_NOMAX M_NODRAIN M_EARLYDRAIN M_FENCEEARLY M_SILENT M_REDO M_FIRST
 * Reached:   R_GRANT (job 1 uses the tree), R_GIVEN (a result is given)
 */
#ifndef STEPS
#define STEPS 3
#endif
#ifndef REPLACED
#define REPLACED 0
#endif
#define NONE 15
#define JOB(h) ((h) >> 1)
#define PEER(h) ((h) ^ 1)
#define GRANTS(j, e) ((j) == 0 -> (e) == 0 : (e) == 1)
#define TREE 1
#define PLAIN 2

byte known[4];            /* bits: epochs this rank holds */
byte applied[4];
byte offer[8];            /* rank, parity of the step: what went into the boundary's MIN */
byte at[4];               /* boundaries this rank has given to */
byte step[4];             /* lowest incomplete operation */
byte joined[4];           /* 1 + operation joined in the tree */
byte plain[4];            /* 1 + operation joined plain */
byte way[4];              /* how operation `step - 1` was done here */
byte stated[4];           /* statement on the one granted epoch: 2 * index + plain; NONE: not yet */
bool lost[4], dead[4], finished[4];
byte begun[2];            /* newest epoch published */
bool allowed[2];          /* permission at the switch */
bool broken[2];           /* aborted: fenced, or the switch failed */
byte admitted[2];         /* bits: operations */
byte refused[2];
bool failed;              /* the switch, once */
byte replaced;

#define NEWEST(h) ((known[h] & 4) -> 2 : ((known[h] & 2) -> 1 : 0))
#define BOTH(a, h, v) (a[h] == (v) && a[PEER(h)] == (v))
/* The tree still carries the operation for this rank: admitted, and neither taken nor cut off. */
#define BIT(h) (1 << step[h])
#define CARRIES(h) (!lost[h] && !dead[h] && (admitted[JOB(h)] & BIT(h)))
#define BUSY(j) (CARRIES(2 * (j)) || CARRIES(2 * (j) + 1))
/* It is cut off from the granted tree, or has left it. */
#define AWAY(h) (lost[h] || dead[h] || finished[h] || !GRANTS(JOB(h), applied[h]))
#define CLEAR(j) (!BUSY(j) && AWAY(2 * (j)) && AWAY(2 * (j) + 1))

inline state_once(h, value) { if :: stated[h] == NONE -> stated[h] = value :: else fi }

/* The operation is complete here: alike at both ranks. */
inline complete(h, how) {
  way[h] = how; step[h]++; joined[h] = 0; plain[h] = 0;
  assert(step[PEER(h)] != step[h] || way[PEER(h)] == way[h]);
  assert(step[PEER(h)] + 1 >= step[h] && step[h] + 1 >= step[PEER(h)])
}

proctype deliver() {
end_d: do
  :: d_step { begun[0] >= 1 && !(known[0] & 2) -> known[0] = known[0] | 2 }
  :: d_step { begun[0] >= 1 && !(known[1] & 2) -> known[1] = known[1] | 2 }
  :: d_step { begun[1] >= 1 && !(known[2] & 2) -> known[2] = known[2] | 2 }
  :: d_step { begun[1] >= 1 && !(known[3] & 2) -> known[3] = known[3] | 2 }
#ifdef RENEWED
  :: d_step { begun[0] >= 2 && !(known[0] & 4) -> known[0] = known[0] | 4 }
  :: d_step { begun[0] >= 2 && !(known[1] & 4) -> known[1] = known[1] | 4 }
#endif
  od
}

proctype rank(byte h) {
  byte mine, theirs;
  do
  :: step[h] == STEPS -> break
  :: step[h] < STEPS ->
     /* ---- the boundary: apply what the last one agreed on, then give to this one */
     if
     :: dead[PEER(h)] -> goto out
     :: d_step { at[h] == 0 || at[PEER(h)] >= at[h] ->
          if
          :: at[h] > 0 ->
             mine = offer[2 * h + ((at[h] - 1) & 1)]; theirs = offer[2 * PEER(h) + ((at[h] - 1) & 1)];
#ifdef M_OWN
             theirs = mine;
#endif
#ifdef M_NOMAX
             mine = (mine < theirs -> mine : theirs); theirs = mine;
#endif
             if
             :: mine == theirs && mine > applied[h] ->
                assert(known[h] & (1 << mine));                        /* nobody applies what he lacks */
#ifndef M_SILENT
                if :: GRANTS(JOB(h), applied[h]) -> state_once(h, 2 * step[h]) :: else fi;
#endif
                applied[h] = mine
             :: else
             fi;
             mine = 0; theirs = 0
          :: else
          fi;
          offer[2 * h + (at[h] & 1)] = NEWEST(h); at[h]++;
          assert(at[PEER(h)] != at[h] || step[h] != step[PEER(h)] || applied[h] == applied[PEER(h)]) }
     fi;
     /* ---- the operation */
     if
     :: dead[h] || dead[PEER(h)] -> goto out
     :: atomic { !dead[h] && GRANTS(JOB(h), applied[h]) && !lost[h] -> joined[h] = step[h] + 1 }
     :: atomic { !dead[h] && !(GRANTS(JOB(h), applied[h]) && !lost[h]) ->
          (!(lost[h] && stated[PEER(h)] == NONE)) -> plain[h] = step[h] + 1 }
     fi;
     do
     :: dead[h] || dead[PEER(h)] -> goto out
     /* the root, at the first header; the job's last operation must have been delivered */
     :: atomic { joined[h] && !((admitted[JOB(h)] | refused[JOB(h)]) & BIT(h)) && !broken[JOB(h)] && !BUSY(JOB(h)) ->
          if
          :: allowed[JOB(h)] ->
             admitted[JOB(h)] = admitted[JOB(h)] | BIT(h);
             assert(!BUSY(1 - JOB(h)))                                  /* never over capacity */
#ifdef R_GRANT
             ; assert(JOB(h) == 0)
#endif
          :: else -> refused[JOB(h)] = refused[JOB(h)] | BIT(h)
          fi }
     :: d_step { joined[h] && !lost[h] && (refused[JOB(h)] & BIT(h)) -> joined[h] = 0; plain[h] = step[h] + 1 }
     :: d_step { (joined[h] && !lost[h] && (admitted[JOB(h)] & BIT(h))
#ifndef M_FIRST
                 && (joined[PEER(h)] == joined[h] || step[PEER(h)] > step[h])
#endif
                ) -> complete(h, TREE) };
        break
     :: d_step { (plain[h] == step[h] + 1 && (plain[PEER(h)] == plain[h] || step[PEER(h)] > step[h]))
                 -> complete(h, PLAIN) };
        break
     /* the connection breaks, or it took too long: one statement, and never again this tree */
     :: d_step { GRANTS(JOB(h), applied[h]) && broken[JOB(h)] && !lost[h] ->
          lost[h] = true; state_once(h, 2 * step[h] + (plain[h] -> 1 : 0)) }
     /* what the statements say: the other has it, or it runs plain */
     :: d_step { joined[h] && lost[h] && stated[PEER(h)] != NONE && (stated[PEER(h)] >> 1) > step[h] ->
#ifdef R_GIVEN
          assert(false);
#endif
#ifdef M_REDO
          complete(h, PLAIN) };
#else
          complete(h, TREE) };
#endif
        break
     :: d_step { joined[h] && lost[h] && stated[PEER(h)] != NONE && (stated[PEER(h)] >> 1) <= step[h] ->
          joined[h] = 0; plain[h] = step[h] + 1 }
     od
  od;
  atomic { if :: GRANTS(JOB(h), applied[h]) -> state_once(h, 2 * step[h]) :: else fi };
  (dead[h] || stated[h] == NONE || stated[PEER(h)] != NONE || dead[PEER(h)]);
out:
  finished[h] = true
}

/* A rank of a job with a dead one may wait for ever: its owner ends it. */
proctype death() {
end_k: if
  :: d_step { !finished[0] && !finished[1] -> dead[0] = true }
  :: skip
  fi
}

proctype switch_() {
end_s: if
  :: d_step { !failed -> failed = true; broken[0] = true; allowed[0] = false;
              if :: begun[1] >= 1 || allowed[1] -> broken[1] = true; allowed[1] = false :: else fi;
            }
  :: skip
  fi
}

#define DRAINED(h) (applied[h] > 0)
#ifdef M_EARLYDRAIN
#undef DRAINED
#define DRAINED(h) (NEWEST(h) > 0)
#endif
proctype controller() {
again:
  if
  :: goto gone
  :: d_step { replaced < REPLACED -> replaced++ }; goto again
  :: d_step { begun[0] = (begun[0] < 1 -> 1 : begun[0]) }
  fi;
#ifdef RENEWED
  if :: begun[0] = 2 :: skip :: goto gone fi;
#endif
#ifndef M_NODRAIN
end_c1: if
  :: DRAINED(0) && DRAINED(1) -> skip                                   /* all that is older is complete */
#ifdef FENCE
  :: d_step { allowed[0] = false; broken[0] = true };
#ifndef M_FENCEEARLY
end_c2: if :: CLEAR(0) -> skip :: goto gone fi
#endif
#endif
  :: d_step { replaced < REPLACED -> replaced++ }; goto again
  :: goto gone
  fi;
#endif
end_c3: if
  :: d_step { !broken[1] -> allowed[1] = true }
  :: goto gone
  fi;
  if :: d_step { begun[1] = 1 } :: goto gone fi;
gone: skip
}

init {
  byte n;
  atomic {
    for (n : 0 .. 3) { known[n] = 1; stated[n] = NONE }
    allowed[0] = true;
    for (n : 0 .. 3) { run rank(n) }
    n = 0; run deliver();
#ifdef DEATH
    run death();
#endif
#ifdef SWITCH
    run switch_();
#endif
    run controller()
  }
}
