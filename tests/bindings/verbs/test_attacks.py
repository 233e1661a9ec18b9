"""A requester with sessions of its own tries to read or change what belongs to another: nothing of it may succeed.

Keys are not secret here: the attacker is given whatever it could guess. What refuses it is that a key is worth nothing
outside its protection domain, and exact bounds within it. Eight classes of attempts, each with its share of every run;
after every volley all of the victims' memory is compared and a request passes each of them.
"""

from __future__ import annotations

import itertools
import random
import re
import select
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from mmap import mmap

import pytest

from offpath.bindings.errors import PeerGone, TicketRefused, VerbsError
from offpath.bindings.verbs.devices import choose
from offpath.bindings.verbs.domain import Device, Domain
from offpath.bindings.verbs.exchange import VerbsListener, as_message, from_message
from offpath.bindings.verbs.fabric import Seal
from offpath.bindings.verbs.link import End
from offpath.bindings.verbs.queue import PSN_MASK, QueuePair

from ...sizes import SIZE
from .attackers import BOUND_S, LANDING_BYTES, Attacker, Bare, Seat, Shot, Victim

pytestmark = pytest.mark.rdma
SEED = 20_260
ATTEMPTS = 20_700 if SIZE == "full" else 1_008
SEATS = 64
SEALS: tuple[Seal, ...] = ("pd", "mw", "pd", "mw")
WRITES = ("RDMA_WRITE", "RDMA_WRITE_WITH_IMM")
READS = ("RDMA_READ", "ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD")
REFUSED = {"REM_ACCESS_ERR", "REM_INV_REQ_ERR"}
UNANSWERED = {"RETRY_EXC_ERR"}
TOP = 1 << 64

Aimed = tuple[Seat | Bare, Shot]


class Siege:
    """Victims, the attacker, and what either may use."""

    def __init__(self, held: ExitStack, seats: int) -> None:
        self.dice = random.Random(SEED)
        daemon, requesters = choose(device="rxe0"), choose(device="rxe1")
        self.daemon = Device(daemon)
        held.callback(self.daemon.close)
        attacking = Device(requesters)
        held.callback(attacking.close)
        self.attacking = attacking
        self.listener = VerbsListener()
        self.stale: list[Shot] = []
        for seal in SEALS[:2]:
            gone = Victim(self.daemon, requesters, seal, self.dice)
            self.stale.append(Shot("", gone.end.memory, gone.end.rkey, gone.slots_bytes))
            gone.close()
        self.victims = []
        for number, seal in enumerate(SEALS):
            victim = Victim(self.daemon, requesters, seal, self.dice)
            held.callback(victim.close)
            self.victims.append(victim)
            self.offer(f"ticket-of-victim-{number}")
            self.listener.claim(f"ticket-of-victim-{number}".encode(), victim.requester_end, time.monotonic_ns())
        self.attacker = Attacker(self.daemon, attacking, seats, self.dice)
        held.callback(self.attacker.close)
        self.seats = self.attacker.seats
        self.former = [seat.end for seat in self.seats]
        self.numbers = itertools.count()
        owners = [self.victims[0].end, self.victims[1].end, self.seats[0].end]
        indices = {(end.rkey >> 8) + step for end in owners for step in (-1, 0, 1)}
        self.keys = [index << 8 | byte for index in sorted(indices) for byte in range(256)]
        self.dice.shuffle(self.keys)

    def offer(self, ticket: str) -> None:
        self.listener.offer(ticket, 1, 4096, 4096, time.monotonic_ns() + 60_000_000_000)

    def write(self) -> str:
        return self.dice.choice(WRITES)

    def within(self, victim: Victim) -> tuple[int, int]:
        """An address in the victim's slots, and how much may be written there."""
        at = self.dice.randrange(victim.slots_bytes - 8)
        return victim.end.memory + at, self.dice.randint(1, min(4096, victim.slots_bytes - at))

    def assert_nothing_happened(self) -> None:
        """To nobody: neither to the victims, nor to the attacker's own slots."""
        for victim in self.victims:
            victim.assert_untouched()
            victim.exchange()
        for seat in self.seats:
            assert seat.session.slots.view == bytes(seat.session.slots.nbytes)
        assert self.attacker.landing[:4096] == bytes(4096)
        for device in (self.daemon, self.attacking):
            device.events()


# -- classes of attempts --------------------------------------------------------------------------------------------
def wrong_keys(siege: Siege, seat: Seat, number: int) -> Aimed:
    victim = siege.dice.choice(siege.victims)
    address, nbytes = siege.within(victim)
    return seat, Shot(siege.write(), address, siege.dice.getrandbits(32), nbytes)


def neighbouring_keys(siege: Siege, seat: Seat, number: int) -> Aimed:
    """A key is an index and a byte: those around the attacker's and the victims', with every byte if there is time."""
    key = siege.keys[number % len(siege.keys)]
    ends = [victim.end for victim in siege.victims] + [each.end for each in siege.seats]
    places = {end.rkey >> 8: end.memory for end in ends}
    if key == seat.end.rkey:  # that would be its right
        key ^= 1
    address = places.get(key >> 8, siege.victims[0].end.memory)
    return seat, Shot(siege.write(), address + siege.dice.randrange(4096), key, 64)


def true_keys_of_others(siege: Siege, seat: Seat, number: int) -> Aimed:
    victim = siege.victims[number % len(siege.victims)]
    address, nbytes = siege.within(victim)
    return seat, Shot(siege.write(), address, victim.end.rkey, nbytes)


def out_of_bounds(siege: Siege, seat: Seat, number: int) -> Aimed:
    own, size = seat.end.memory, len(seat.session.slots.view)
    nbytes = siege.dice.randint(2, 4096)
    inside = siege.dice.randrange(1, nbytes)
    address, nbytes = siege.dice.choice(
        [
            (own - nbytes, nbytes), (own + size, nbytes),  # before, behind
            (own - inside, nbytes), (own + size - inside, nbytes),  # across an edge
            (TOP - inside, nbytes), (TOP - nbytes, nbytes), (0, nbytes),  # around the end of all addresses
            (own, LANDING_BYTES), (own + size - 1, 2), ((own + (1 << 63)) % TOP, 8),
        ]
    )  # fmt: skip
    return seat, Shot(siege.write(), address % TOP, seat.end.rkey, nbytes)


def reads_and_atomics(siege: Siege, seat: Seat, number: int) -> Aimed:
    """Nobody may read remotely, not even what is its own to write."""
    end = seat.end if number % 2 else siege.dice.choice(siege.victims).end
    return seat, Shot(READS[number // 2 % 3], end.memory + 8 * siege.dice.randrange(256), end.rkey, 8)


def stale_keys(siege: Siege, seat: Seat, number: int) -> Aimed:
    """Of sessions that are closed, of the seat's former ones, and of the present one as it is hung up."""
    if number % 4 == 3:
        seat.hang_up()
        seat.bare.connect(seat.end.address, siege.dice.getrandbits(24), is_answered=False)
        return seat, Shot(siege.write(), seat.end.memory, seat.end.rkey, 64, is_answered=False)
    if number % 4 == 2:
        former = siege.former[siege.seats.index(seat)]
        if former == seat.end:
            seat.hang_up()
            seat.open()
        return seat, Shot(siege.write(), former.memory, former.rkey, 64)
    gone = siege.stale[number % 2]
    return seat, replace(gone, opcode=siege.write(), nbytes=siege.dice.randint(1, gone.nbytes))


def spoofed_queue_pairs(siege: Siege, seat: Seat, number: int) -> Aimed:
    """To a victim's own queue pair, which takes its own keys: a wrong packet number from the address that it expects
    its peer at, or the right number from another address. (Both right: see the last test.)"""
    victim, place = siege.victims[number // 4 % len(siege.victims)], siege.seats.index(seat)
    source, end, at_daemon = (
        (seat, victim.end, True),
        (siege.attacker.inner[place], victim.end, True),
        (seat, victim.end, True),
        (siege.attacker.outer[place], victim.requester_end, False),
    )[number % 4]
    psn = victim.expected_psn(at_daemon=at_daemon)
    if source is seat:
        psn = (psn + siege.dice.randint(1, PSN_MASK)) & PSN_MASK
    return source, Shot(siege.write(), end.memory, end.rkey, 64, end.address, psn, is_answered=False)


FORGED: dict[str, Callable[[Siege, Seat, int], Aimed]] = {
    "wrong keys": wrong_keys,
    "neighbouring keys": neighbouring_keys,
    "true keys of others": true_keys_of_others,
    "out of bounds": out_of_bounds,
    "reads and atomics": reads_and_atomics,
    "stale keys": stale_keys,
    "spoofed queue pairs": spoofed_queue_pairs,
}


def fire(siege: Siege, name: str, first: int, count: int) -> None:
    """One volley; every request of it must be refused."""
    used = siege.seats[:count]
    shots = [FORGED[name](siege, seat, first + number) for number, seat in enumerate(used)]
    ended = siege.attacker.volley(shots)
    for (_, shot), status in zip(shots, ended, strict=True):
        assert status in (REFUSED if shot.is_answered else UNANSWERED), (name, shot, status)
    siege.assert_nothing_happened()
    for seat in used:
        seat.renew()


# -- negotiations ---------------------------------------------------------------------------------------------------
def spelled(end: End, how: int) -> End:
    """The same end in another spelling of its GID, as a message would bring it."""
    message = as_message(end)
    gid = "::ffff:10.99.1.1"
    spellings = (message.gid, gid, gid.upper(), "0:0:0:0:0:ffff:a63:101", f"{gid}%0", f"{gid}%rdma1")
    return from_message(message.model_copy(update={"gid": spellings[how % len(spellings)]}))


def replay(siege: Siege, number: int) -> None:
    """One negotiation that must fail, with whatever must go before it."""
    now, dice = time.monotonic_ns(), siege.dice
    own = siege.seats[0].bare.address(dice.randrange(PSN_MASK))
    fresh = f"ticket-of-attacker-{next(siege.numbers)}"
    siege.offer(fresh)
    end = End(own, 16, dice.getrandbits(48), dice.getrandbits(32))
    victim = dice.choice(siege.victims)
    if number % 4 == 0:  # its own ticket, twice
        siege.listener.claim(fresh.encode(), end, now)
        siege.listener.back(end)
        ticket = fresh
    elif number % 4 == 1:  # a victim's
        ticket = f"ticket-of-victim-{dice.randrange(len(siege.victims))}"
    elif number % 4 == 2:  # a guess near its own
        ticket = fresh[:-1] + chr(ord(fresh[-1]) ^ 1 | 0x40)
    else:  # a good one, for a victim's queue pair, whatever else is told of it
        ticket = fresh
        end = replace(end, address=replace(victim.requester_end.address, psn=dice.randrange(PSN_MASK)))
    with pytest.raises(TicketRefused):
        siege.listener.claim(ticket.encode(), spelled(end, number // 4 if number % 4 == 3 else 0), now)
    siege.listener.withdraw(fresh)


# -- tests ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def siege(held: ExitStack) -> Siege:
    """Enough for single shots; seats take time to make."""
    return Siege(held, 2)


def test_nothing_that_a_requester_forges_reads_or_changes_what_is_anothers(
    held: ExitStack, record_property: Callable[[str, object], None]
) -> None:
    siege = Siege(held, SEATS)
    names = [*FORGED, "replayed negotiations"]
    share = ATTEMPTS // len(names)
    volleys = [(name, first, min(SEATS, share - first)) for name in names for first in range(0, share, SEATS)]
    siege.dice.shuffle(volleys)
    fired: Counter[str] = Counter()
    spent = dict.fromkeys(names, 0.0)
    for name, first, count in volleys:
        started = time.monotonic()
        if name in FORGED:
            fire(siege, name, first, count)
        else:
            for number in range(first, first + count):
                replay(siege, number)
            siege.assert_nothing_happened()
        fired[name] += count
        spent[name] += time.monotonic() - started
    assert fired == dict.fromkeys(names, share)
    assert fired.total() >= (20_000 if SIZE == "full" else 1_000)
    for name in names:
        print(f"{name}: {fired[name]} attempts, {fired[name] / spent[name]:.0f}/s")
        record_property(name, f"{fired[name]} in {spent[name]:.1f} s")
    all_s = sum(spent.values())
    print(f"all: {fired.total()} attempts in {all_s:.1f} s, {fired.total() / all_s:.0f}/s, seed {SEED}")


def test_the_attackers_queue_pairs_do_carry_what_is_their_right(siege: Siege) -> None:
    """Else nothing above would have been refused: it would not have arrived."""
    own = [(seat, Shot("RDMA_WRITE", seat.end.memory, seat.end.rkey, 4096)) for seat in siege.seats]
    siege.attacker.landing[:4096] = bytes(range(256)) * 16
    assert siege.attacker.volley(own) == ["SUCCESS"] * len(own)
    for seat in siege.seats:
        assert seat.session.slots.view[:4096] == siege.attacker.landing[:4096]
    for bare, device in ((siege.attacker.inner[0], siege.daemon), (siege.attacker.outer[0], siege.attacking)):
        domain = Domain(device)
        queue = QueuePair(domain, psn=1, writes=4, immediates=4)
        try:
            slots = domain.register(mmap(-1, 4096), remote_write=True)
            queue.connect(bare.address(7))
            shot = Shot("RDMA_WRITE_WITH_IMM", slots.address, slots.rkey, 64, queue.address, 7)
            assert siege.attacker.volley([(bare, shot)]) == ["SUCCESS"]
            assert [each.nbytes for each in queue.poll()] == [64]
        finally:
            queue.close()
            domain.close()


@pytest.mark.parametrize("number", [0, 1], ids=["pd", "mw"])
def test_a_forged_packet_that_has_everything_right_is_taken(siege: Siege, number: int) -> None:
    """Not held, and held here so that nobody believes it is: a packet of a reliable connection does not say which queue
    pair sent it. From the right address, with the right number, key and bounds, it is the peer's own; and what the peer
    then sends under that number counts as a repetition. 24 bits of luck, and no luck at all for a user who may ask the
    requester's kernel (`rdma resource show qp`)."""
    victim = siege.victims[number]
    right = victim.expected_psn(at_daemon=True)
    shot = Shot(
        "RDMA_WRITE_WITH_IMM", victim.end.memory, victim.end.rkey, 64, victim.end.address, right, is_answered=False
    )
    siege.attacker.landing[:64] = b"\xa5" * 64
    before = bytes(victim.session.slots.view[64:])
    assert siege.attacker.volley([(siege.seats[0], shot)]) == ["RETRY_EXC_ERR"]  # the answer goes to the peer
    assert victim.session.poll() == 0
    assert victim.session.slots.view[:64] == siege.attacker.landing[:64]
    assert victim.session.slots.view[64:] == before
    assert victim.expected_psn(at_daemon=True) == (right + 1) & PSN_MASK

    shown = subprocess.run(
        ["setpriv", "--reuid=65534", "--clear-groups", "rdma", "resource", "show", "qp", "link", "rxe1"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert re.search(rf"lqpn {victim.requester_end.address.qp_num} .*\bsq-psn {right}\b", shown)

    victim.requester.ring(1)  # acknowledged as repeated
    until = time.monotonic() + BOUND_S
    while not victim.requester._link.is_quiet():
        assert time.monotonic() < until
    assert victim.session.poll() is None


def test_a_window_refuses_another_queue_pair_of_its_own_domain_and_a_domain_alone_does_not(siege: Siege) -> None:
    for victim, status in ((siege.victims[0], "SUCCESS"), (siege.victims[1], "REM_ACCESS_ERR")):
        link = victim.session._link
        assert link is not None
        beside = QueuePair(link.domain, psn=1, writes=4, immediates=4)
        try:
            bare = siege.seats[0].bare
            beside.connect(bare.address(7))
            shot = Shot("RDMA_WRITE", victim.end.memory, victim.end.rkey, 64, beside.address, 7)
            siege.attacker.landing[:64] = b"\x5a" * 64
            before = bytes(victim.session.slots.view)
            assert siege.attacker.volley([(bare, shot)]) == [status]
            written = siege.attacker.landing[:64] + before[64:] if status == "SUCCESS" else before
            assert victim.session.slots.view == written
        finally:
            beside.close()


def test_the_key_of_a_window_changes_with_every_opening(siege: Siege) -> None:
    """It is bound anew, on the session's new queue pair; requests in between bind nothing."""
    seat = siege.seats[0]
    keys = set()
    for _ in range(3):
        seat.hang_up()
        seat.open("mw")
        keys.add(seat.end.rkey)
        shots = [(seat, Shot("RDMA_WRITE", seat.end.memory, seat.end.rkey, 64))]
        assert siege.attacker.volley(shots) == ["SUCCESS"]
        shots = [(seat, Shot("RDMA_WRITE", seat.end.memory + len(seat.session.slots.view) - 63, seat.end.rkey, 64))]
        assert siege.attacker.volley(shots) == ["REM_ACCESS_ERR"]
    assert len(keys) == 3


def test_a_device_without_windows_refuses_to_seal_by_one(siege: Siege) -> None:
    seat = siege.seats[0]
    seat.hang_up()
    siege.daemon.has_windows = False
    with pytest.raises(VerbsError, match="none of type 2B"):
        seat.open("mw")
    seat.open("pd")


@pytest.mark.parametrize(("opcode", "nbytes"), [("SEND", 0), ("SEND", 64), ("SEND_WITH_IMM", 0), ("SEND_WITH_INV", 0)])
def test_a_message_that_is_no_write_ends_its_senders_session_only(siege: Siege, opcode: str, nbytes: int) -> None:
    """It would lie in a receive of the daemon's, and its immediate, if it has one, is no doorbell. Nor does it
    invalidate the key of another's region; what it does to a window of rdma_rxe, see docs/rdma.md."""
    seat = siege.seats[0]
    siege.attacker.volley([(seat, Shot(opcode, 0, siege.victims[0].end.rkey, nbytes))])
    until = time.monotonic() + BOUND_S
    while seat.session.fileno() >= 0 and not select.select([seat.session.fileno()], [], [], 0)[0]:
        assert time.monotonic() < until
    with pytest.raises(PeerGone):
        seat.session.poll()
    siege.assert_nothing_happened()
