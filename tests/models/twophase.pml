/* The update protocol of MINA (section IV-B) as its seven steps read: prepare, lock, index back, compare, status or
 * abort, unlock, acknowledge. It holds without faults and for one job; each fault below breaks it.
 *
 *   (none)   holds                          LOCK_LONG  the mutex covers the all-reduce: deadlock
 *   DIES     controller dies: hosts wait    FORGETS    it comes back without memory, aborts: hosts disagree
 *   LOSES    one message is lost: wait      RESTARTS   an agent restarts and forgets the lock: disagree
 *   TIMEOUT  a host gives up the lock by itself: disagree
 *   SHARED   two jobs: the index compares launches, not completions: over capacity
 *   LATE     a copy of the first try's abort arrives in the second: it unlocks, hosts disagree
 *   SKEWED   no fault, as many operations and tries as it takes: hosts are one apart at each try, for ever
 *
 * Bounds: two hosts per job, OPS operations each, one update (status 0: job 0 has INA; 1: job 1), one fault.
 */
#ifdef SHARED
#define HOSTS 4
#else
#define HOSTS 2
#endif
#define OPS 3
#define OTHER(h) ((h) ^ 1)
#define JOB(h) ((h) >> 1)
#define OPEN 0
#define PREPARED 1
#define RUNS 2
#define UNKNOWN 3

mtype = { prepare, ack, set, drop, done };
chan down[HOSTS] = [2] of { mtype };
#ifdef LATE
chan stray[HOSTS] = [1] of { mtype };
#endif
chan up = [HOSTS * 2] of { mtype, byte, byte };

byte mutex[HOSTS], status[HOSTS], launched[HOSTS], over[HOSTS];
byte choice[HOSTS * OPS];
bool inside[HOSTS];            /* an operation of this host is in the tree */
bool spent;                    /* the one fault */

#ifdef SKEWED
#define ROUND 4                /* hosts are at most one apart: four numbers tell who is ahead */
#define HAS_COME(h) (launched[OTHER(h)] == launched[h] || launched[OTHER(h)] == (launched[h] + 1) % ROUND)
#else
#define HAS_COME(h) (launched[OTHER(h)] >= launched[h])
#endif

inline launch(h) {
#ifdef SKEWED
  launched[h] = (launched[h] + 1) % ROUND
#else
  choice[h * OPS + launched[h]] = status[h];
  assert(choice[OTHER(h) * OPS + launched[h]] == UNKNOWN || choice[OTHER(h) * OPS + launched[h]] == status[h]);
  inside[h] = (status[h] == JOB(h));
#ifdef SHARED
  if :: inside[h] -> assert(!inside[h ^ 2] && !inside[h ^ 3]) :: else fi;
#endif
  launched[h]++
#endif
}

proctype execute(byte h) {
  do
#ifdef SKEWED
  ::
#else
  :: launched[h] == OPS -> break
  :: launched[h] < OPS ->
#endif
     atomic { mutex[h] == OPEN -> mutex[h] = RUNS };
     d_step { launch(h) };
#ifndef LOCK_LONG
     mutex[h] = OPEN;
#endif
     HAS_COME(h);
#ifndef SKEWED
     d_step { inside[h] = false; over[h]++ };
#endif
#ifdef LOCK_LONG
     mutex[h] = OPEN
#endif
  od
}

proctype agent(byte h) {
end_a: do
  :: down[h] ? prepare -> atomic { mutex[h] == OPEN -> mutex[h] = PREPARED }; up ! ack, h, launched[h]
  :: down[h] ? set -> atomic { status[h] = 1; if :: mutex[h] == PREPARED -> mutex[h] = OPEN :: else fi }; up ! done, h, 0
  :: down[h] ? drop -> atomic { if :: mutex[h] == PREPARED -> mutex[h] = OPEN :: else fi }
#ifdef LATE
  :: stray[h] ? drop -> atomic { if :: mutex[h] == PREPARED -> mutex[h] = OPEN :: else fi }
#endif
#ifdef RESTARTS
  :: atomic { mutex[h] == PREPARED && !spent -> spent = true; mutex[h] = OPEN }
#endif
#ifdef TIMEOUT
  :: atomic { mutex[h] == PREPARED -> mutex[h] = OPEN }
#endif
  od
}

inline say(h, what) {
  if
  :: down[h] ! what
#ifdef LATE
  :: atomic { what == drop && !spent -> spent = true; stray[h] ! drop; down[h] ! drop }
#endif
#ifdef LOSES
  :: atomic { !spent -> spent = true }
#endif
#ifdef DIES
  :: atomic { !spent -> spent = true; goto gone }
#endif
#ifdef FORGETS
  :: atomic { !spent -> spent = true; goto back }
#endif
  fi
}

proctype control() {
  byte h, n, index, tries; mtype what; byte seen[HOSTS];
again: skip;
  for (h : 0 .. HOSTS - 1) { say(h, prepare) }
  n = 0;
end_w: do
  :: n < HOSTS -> up ? what, h, index; if :: what == ack -> seen[h] = index; n++ :: else fi
  :: n == HOSTS -> break
  od;
  if
  :: (seen[0] == seen[1]
#ifdef SHARED
     && seen[2] == seen[3]
#endif
     ) -> for (h : 0 .. HOSTS - 1) { say(h, set) }
  :: else ->
     for (h : 0 .. HOSTS - 1) { say(h, drop) }
#ifdef SKEWED
accept_try: goto again
#else
     tries++;
     if :: tries < 2 -> goto again :: else fi
#endif
  fi;
  goto gone;
#ifdef FORGETS
back: skip;
  for (h : 0 .. HOSTS - 1) { down[h] ! drop }
#endif
gone: skip;
end_c: do :: up ? what, h, index od
}

init {
  byte n;
  atomic {
    for (n : 0 .. HOSTS * OPS - 1) { choice[n] = UNKNOWN }
    for (n : 0 .. HOSTS - 1) { run execute(n); run agent(n) }
    run control()
  }
}
