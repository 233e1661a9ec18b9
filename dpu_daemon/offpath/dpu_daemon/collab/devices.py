"""Answers devices' messages: tokens, clocks and limits first, then the book.

Every refusal is typed. No answer, error or log line contains a device's name or token. Of a message that may be a
replay only what the device has already is answered: it gets no lease by it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from offpath.bindings.errors import ControlError, RequestRefused
from offpath.bindings.wire.collab import (
    Answer,
    Answers,
    Batch,
    CheckIn,
    Leased,
    NoJob,
    Recorded,
    Refusal,
    Result,
    version_of,
)
from offpath.dpu_daemon.collab.config import DevicesTable
from offpath.dpu_daemon.collab.recent import Rate, Recent, Seen
from offpath.dpu_daemon.collab.shell import CollabShell
from offpath.dpu_daemon.collab.tokens import Identities, Tokens, shown
from offpath.sched.collab.errors import CollabRefused, RequirementInvalid
from offpath.sched.collab.requirements import MOST_KINDS, Properties

logger = logging.getLogger(__name__)
UNREADABLE: Final = ("json", "version", "message")
"""Codes for messages that could not be read: see `code_of`."""
_MS: Final = 10**6
_STEP_MS: Final = 1_000
"""By less nobody sets a clock: it is slewed, and the other clock with it."""
_Kind = tuple[tuple[tuple[str, int], ...], tuple[tuple[str, str], ...], tuple[str, ...]]


class DeviceRefused(RequestRefused):
    """A device's message is refused; ``code`` is stable. Becomes a `Refusal`."""

    def __init__(self, code: str, detail: str, retry_ms: int = 0) -> None:
        super().__init__(detail)
        self.code, self.retry_ms = code, retry_ms


class Devices:
    """``tokens``: of the operator's keys. Its methods are called in the shell's event loop."""

    def __init__(self, shell: CollabShell, tokens: Tokens, table: DevicesTable) -> None:
        self._shell = shell
        self._identities = Identities(shell.store.secret())
        self.recent = Recent(table.remembered, _of_each(table))
        self._full_ms = 0.0
        """Of all devices together, see `Rate.full_at`."""
        self.reload(tokens, table)
        self._period_ns = shell.config.policy.period_s * 10**9
        self._started_ms = shell.now_ns.wall_ns() // _MS
        self._clock_error_ms = self._started_ms - shell.started_ns // _MS
        """What devices are told is by the machine's clock. How far that is from the shell's."""
        self._kinds: dict[_Kind, Properties] = {}

    def reload(self, tokens: Tokens, table: DevicesTable) -> None:
        """Keys and limits for what comes from here on; ``remembered`` is the same. What a device has used up of its
        limit stays used up, see `Recent.limit`."""
        self._tokens, self._table = tokens, table
        now_ms = self._shell.now_ns() // _MS
        self.recent.limit(_of_each(table), now_ms)
        self._all = Rate(1_000 / table.per_second, max(1, table.per_second // 10))
        self._full_ms = min(self._full_ms, self._all.latest_ms(now_ms))
        self._skew_ms = table.skew_s * 1_000

    def answer(self, message: CheckIn | Result, give: Callable[[Answer, bool], None]) -> None:
        """Call ``give`` with the answer, when what it says is on the disk, and whether the token was valid."""
        began_ns = time.perf_counter_ns()
        found, is_valid, is_change = self._answered(message, self._shell.advance())

        def answered() -> None:
            self._shell.counts.answer_times.add(time.perf_counter_ns() - began_ns)
            give(found, is_valid)

        if is_change:
            self._shell.when_durable(answered)
        else:
            answered()

    def answer_batch(self, batch: Batch, give: Callable[[Answers], None]) -> None:
        """As `answer`, for all messages of a batch at once."""
        began_ns = time.perf_counter_ns()
        answers, is_change = list[Answer](), False
        now_ns = self._shell.advance()  # one time for all of them: nothing can come due before the last one
        for message in batch.items:
            found, _, changes = self._answered(message, now_ns)
            answers.append(found)
            is_change |= changes
        made = Answers.model_construct(number=batch.number, items=answers)  # each is valid

        def answered() -> None:
            self._shell.counts.answer_times.add(time.perf_counter_ns() - began_ns, len(answers))
            give(made)

        if is_change:
            self._shell.when_durable(answered)
        else:
            answered()

    def refusal(self, code: str, detail: str, retry_ms: int = 0) -> Refusal:
        """Of a message that could not be read."""
        self._shell.refused[code] += 1
        return Refusal(code=code, detail=detail[:200], retry_ms=retry_ms, now_ms=self._shell.now_ns.wall_ns() // _MS)

    # -- inside ---------------------------------------------------------------------------------------------------
    def _answered(self, message: CheckIn | Result, now_ns: int) -> tuple[Answer, bool, bool]:
        """The answer, whether the token was valid, and whether the answer must wait for the disk."""
        wall_ms = self._wall_ms(now_ns)
        device = -1
        try:
            device = self._identity(message)
            seen = self._admit(device, message, now_ns // _MS, wall_ms)
            if isinstance(message, Result):
                self._shell.result(device, message.lease, message.is_good, now_ns)
                return Recorded(lease=message.lease, now_ms=wall_ms), True, True
            found = self._checked_in(device, message, seen, now_ns)
            return found, True, isinstance(found, Leased)
        except DeviceRefused as refused:
            return self.refusal(refused.code, str(refused), refused.retry_ms), device >= 0, False
        except CollabRefused as refused:
            return self.refusal(refused.code, str(refused)), True, False
        except RequirementInvalid as refused:
            return self.refusal("properties", str(refused)), True, False

    def _wall_ms(self, now_ns: int) -> int:
        """The machine's clock. When somebody has set it back, times of messages that came while it was ahead no longer
        count: else their devices would be refused until it is as late again."""
        wall_ms = self._shell.now_ns.wall_ns() // _MS
        error_ms = wall_ms - now_ns // _MS
        if error_ms < self._clock_error_ms - _STEP_MS:
            logger.warning(
                "the clock was set back by %.3f s",
                (self._clock_error_ms - error_ms) / 1e3,
                extra={"code": "collab_clock"},
            )
            self.recent.set_back(wall_ms)
            self._started_ms = min(self._started_ms, wall_ms)
        if abs(error_ms - self._clock_error_ms) > _STEP_MS:
            self._clock_error_ms = error_ms
        return wall_ms

    def _identity(self, message: CheckIn | Result) -> int:
        """Raises: DeviceRefused: the token is not the device's."""
        if self._tokens.is_valid(message.device, message.token):
            return self._identities.of(message.device)
        logger.warning(
            "device %s: the token is not this device's", shown(self._identities.of(message.device)),
            extra={"code": "collab_forged"},
        )  # fmt: skip
        raise DeviceRefused("forged", "the token is not this device's")

    def _admit(self, device: int, message: CheckIn | Result, now_ms: int, wall_ms: int) -> Seen:
        """Raises: DeviceRefused: the clock, a replay, or a limit."""
        if abs(message.sent_ms - wall_ms) > self._skew_ms:
            raise DeviceRefused(
                "clock",
                f"sent_ms and now_ms, the controller's clock, differ by more than {self._table.skew_s} s: one is wrong",
            )
        if (left_ms := self._all.wait_ms(self._full_ms, now_ms)) > 0:
            raise DeviceRefused("busy", "all devices together send too much", max(1_000, round(left_ms)))
        seen = self.recent.admit(device, message.sent_ms, now_ms)
        if seen is Seen.OLDER:
            raise DeviceRefused("replayed", "a later message of the device came before it")
        if seen is Seen.TOO_SOON:
            wait_ms = self.recent.wait_ms(device, now_ms)
            raise DeviceRefused("device_rate", f"more than {self._table.per_minute} messages a minute", wait_ms)
        self._full_ms = self._all.full_at(self._full_ms, now_ms)
        return seen

    def _checked_in(self, device: int, message: CheckIn, seen: Seen, now_ns: int) -> Answer:
        """Raises: RequirementInvalid."""
        now_ms = self._shell.now_ns.wall_ns() // _MS
        if seen is Seen.AGAIN or message.sent_ms < self._started_ms:  # before it, nobody remembers what came
            lease = self._shell.book.lease_of(device)
        else:
            lease = self._shell.check_in(device, self._properties(message), now_ns)
        if lease is not None:
            return Leased(
                lease=lease.number, job=lease.job, round=lease.round,
                expires_ms=self._shell.now_ns.wall_of(lease.expires_ns) // _MS, now_ms=now_ms,
            )  # fmt: skip
        if self._shell.book.has_worked(device):
            left_ns = self._period_ns - now_ns % self._period_ns
            return NoJob(why="spent", retry_ms=left_ns // _MS + 1, now_ms=now_ms)
        return NoJob(why="idle", retry_ms=self._table.retry_s * 1_000, now_ms=now_ms)

    def _properties(self, message: CheckIn) -> Properties:
        """Raises: RequirementInvalid: too many in all. Most devices are of few kinds, which are made once."""
        key = tuple(message.numbers.items()), tuple(message.versions.items()), tuple(message.labels)
        found = self._kinds.get(key)
        if found is None:
            found = properties_of(message.numbers, message.versions, message.labels)
            if len(self._kinds) >= MOST_KINDS:
                self._kinds.clear()
            self._kinds[key] = found
        return found


def _of_each(table: DevicesTable) -> Rate:
    """The limit of one device."""
    return Rate(60_000 / table.per_minute, table.burst)


def properties_of(numbers: Mapping[str, int], versions: Mapping[str, str], labels: Iterable[str]) -> Properties:
    """As the book has them. Raises: RequirementInvalid."""
    try:
        return Properties.of(numbers, {name: version_of(text) for name, text in versions.items()}, labels)
    except ValueError as fault:
        raise RequirementInvalid(str(fault)) from None


def code_of(fault: ControlError) -> str:
    """The code for a message that could not be read."""
    return "message" if fault.code == "model" else fault.code
