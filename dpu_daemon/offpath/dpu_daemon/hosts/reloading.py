"""Receives the kernels that a joined helper has reloaded: KernelsReloaded, then what it says of
each."""

from __future__ import annotations

from offpath.bindings.errors import ProtocolError
from offpath.bindings.wire import control
from offpath.dpu_daemon.hosts.helper_link import HelperLink, ReloadedKernels
from offpath.dpu_daemon.hosts.offers import KernelMessage, wrong_detail


def receive(helper: HelperLink, message: control.KernelsReloaded | KernelMessage) -> bool:
    """Record the message. True: all has arrived, and the helper's hello and details are the new ones.

    Raises: ProtocolError: a reload before the last one is complete, a revision that does not rise, two kernels of one
    name, or details that belong to no reload.
    """
    reload = helper.reload
    if isinstance(message, control.KernelsReloaded):
        if reload is not None:
            raise ProtocolError("kernels_reloaded", f"revision {reload.message.revision} is not complete")
        if message.revision <= helper.hello.revision:
            raise ProtocolError("kernels_reloaded", f"revision {message.revision} after {helper.hello.revision}")
        if len({offer.name for offer in message.kernels}) < len(message.kernels):
            raise ProtocolError("kernels_reloaded", "two kernels of one name")
        reload = helper.reload = ReloadedKernels(message)
    elif reload is not None:
        reload.take(message)
    elif isinstance(message, control.MoreKernels):
        raise ProtocolError("more_kernels", "there is no reload")
    else:
        raise wrong_detail(message, "is described without a reload")
    if not reload.is_complete:
        return False
    helper.reload = None
    helper.needs, helper.signatures = reload.needs, reload.signatures
    helper.hello = helper.hello.model_copy(
        update={"kernels": reload.message.kernels, "revision": reload.message.revision}
    )
    return True
