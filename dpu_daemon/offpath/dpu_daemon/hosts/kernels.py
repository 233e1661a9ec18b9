"""Maps kernel names to their numbers in request headers, as the journalled book records them. A number is never reused,
neither after a restart nor after its name was forgotten."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from offpath.bindings.errors import ProtocolError
from offpath.bindings.wire.control import KernelOffer
from offpath.bindings.wire.fields import MAX_KERNELS
from offpath.bindings.wire.negotiating import Described, KernelBatches, KernelInfo
from offpath.bindings.wire.signatures import KernelSignature
from offpath.sched.jobs.events import Batching
from offpath.sched.jobs.helpers import takes_sequences
from offpath.sched.jobs.ledger import Ledger

logger = logging.getLogger(__name__)

_MOST_FORMER: Final = 1024
_NS_PER_MS: Final = 1_000_000
_LARGEST: Final = 0xFFFF_FFFF
"""The number has 32 bits in a request header."""


class KernelRegistry:
    """Assigns numbers; the ledger records them with the `HelperJoined` event that follows."""

    def __init__(self, ledger: Ledger) -> None:
        self.on_changed: list[Callable[[], None]] = []
        self._ledger = ledger
        self._names = {known.kernel: known.name for known in ledger.known.values()}
        self._emulated: dict[str, dict[str, bool]] = {}
        """By kernel and helper, of those that were offered to this process: the journal does not record it."""
        self._differing: set[tuple[str, str]] = set()
        """Helpers and kernels that `_log_differing` has logged."""
        self._signatures: dict[str, dict[str, KernelSignature | None]] = {}
        """By kernel and helper, the helper that offered it last at the end; None: it declared none. A helper that
        reattaches declares it again."""

    def learn(
        self,
        helper: str,
        offers: Sequence[KernelOffer],
        *,
        is_emulated: bool,
        signatures: Mapping[str, KernelSignature],
    ) -> dict[str, int]:
        """Returns the numbers of the helper's kernels: known ones, or new ones. ``is_emulated``: a GPU of it is.
        ``signatures``: those that it declares.

        Raises: ProtocolError: the connected helpers would serve more names than a welcome lists; or no number is left,
        of which only a new lineage of the journal has more.
        """
        self._check_names(helper, offers)
        known = {each.name: each.kernel for each in self._ledger.known.values()}
        last = self._ledger.last_kernel
        for offer in offers:
            if offer.name not in known:
                known[offer.name] = last = last + 1
        if last > _LARGEST:
            raise ProtocolError("kernels", f"no number above {_LARGEST} is left for a new kernel name")
        ids = {offer.name: known[offer.name] for offer in offers}
        former = self._ledger.helpers.by_name
        self._emulated = {
            name: {by: each for by, each in helpers.items() if by in former and by != helper}
            for name, helpers in self._emulated.items()
            if name in known
        }
        self._signatures = {
            name: {by: each for by, each in helpers.items() if by in former and by != helper}
            for name, helpers in self._signatures.items()
            if name in known
        }
        for name in ids:
            self._signatures.setdefault(name, {})[helper] = signatures.get(name)
        for name in ids:
            self._emulated.setdefault(name, {})[helper] = is_emulated
        self._names.update((number, name) for name, number in ids.items())
        for number in list(self._names)[:-_MOST_FORMER]:
            del self._names[number]
        return ids

    def _check_names(self, helper: str, offers: Sequence[KernelOffer]) -> None:
        """Raises: ProtocolError: no room. Names that no helper serves make room, those of connected helpers do not."""
        others = {
            kernel.name for each in self._ledger.helpers.connected if each.name != helper for kernel in each.kernels
        }
        new = {offer.name for offer in offers} - others
        if len(others) + len(new) > MAX_KERNELS:
            raise ProtocolError(
                "kernels", f"its {len(new)} names and the {len(others)} of other helpers are more than {MAX_KERNELS}"
            )

    def changed(self) -> None:
        """The book has recorded the numbers: call each of ``on_changed``."""
        self._log_differing()
        for callback in self.on_changed:
            callback()

    def _log_differing(self) -> None:
        """Log each helper once that declares no sequences for a kernel for which another one does."""
        differing = {
            (helper.name, kernel.name)
            for helper in self._ledger.helpers.connected
            for kernel in helper.kernels
            if self._ledger.kernels[kernel.kernel].sequences and not takes_sequences(helper, kernel.kernel)
        }
        for helper_name, kernel_name in sorted(differing - self._differing):
            logger.warning(
                "kernel %s of helper %s gets no requests: another helper declares sequences for it, this one does not",
                kernel_name, helper_name, extra={"code": "kernel_differs"},
            )  # fmt: skip
        self._differing = differing

    def infos(self) -> list[KernelInfo]:
        """All kernels that are not forgotten, for the welcome."""
        return [
            KernelInfo(
                name=each.name, kernel_id=each.kernel, demand=each.share, is_emulated=self._is_emulated(each.name)
            )
            for each in self._ledger.known.values()
        ]  # fmt: skip

    def described(self, name: str) -> Described:
        """What a requester may know of the kernel, whether or not there is one of that name."""
        served = next((each for each in self._ledger.kernels.values() if each.name == name), None)
        idle_ns = self._ledger.settings.sequence_idle_ns if served is not None and served.sequences else 0
        return Described(
            name=name, signature=self.signature(name), batches=_batches(served.batching if served else None),
            sequence_idle_ms=idle_ns // _NS_PER_MS,
        )  # fmt: skip

    def signature(self, name: str) -> KernelSignature | None:
        """What the kernel takes and returns, by the connected helper that offered it last, or else by the last one; of
        those to which its requests may go. None: that one declared nothing, or none has offered it to this process."""
        helpers = self._ledger.helpers
        number = next((each.kernel for each in self._ledger.known.values() if each.name == name), 0)
        servers = helpers.only_on.get(number, ())
        offered = {by: each for by, each in self._signatures.get(name, {}).items() if not servers or by in servers}
        connected = {helper.name for helper in helpers.connected}
        those = [each for by, each in offered.items() if by in connected] or list(offered.values())
        return those[-1] if those else None

    def _is_emulated(self, name: str) -> bool | None:
        """Whether a helper that may run it has emulated GPUs: those that are connected, or else the former ones. None:
        none of them was connected to this process."""
        offered = self._emulated.get(name, {})
        connected = {helper.name for helper in self._ledger.helpers.connected}
        those = [each for by, each in offered.items() if by in connected] or list(offered.values())
        return any(those) if those else None

    def name(self, number: int) -> str:
        """The kernel's name for display; also of a forgotten kernel while this process remembers it."""
        known = self._ledger.known.get(number)
        return known.name if known is not None else self._names.get(number, f"#{number}")

    def demand(self, number: int) -> int:
        """The kernel's demand R in percent of a GPU; 0: the kernel is forgotten."""
        known = self._ledger.known.get(number)
        return known.share if known is not None else 0


def _batches(batching: Batching | None) -> KernelBatches | None:
    if batching is None:
        return None
    return KernelBatches(
        max_batch=batching.max_rows, max_queue_delay_us=batching.delay_ns // 1_000,
        preferred_batch_sizes=list(batching.preferred),
    )  # fmt: skip
