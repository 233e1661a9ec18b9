"""An attempt to come back that fails says no goodbye: the daemon would give the session up."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from offpath.bindings.errors import PeerGone
from offpath.bindings.wire import control, negotiating
from offpath.bindings.wire.frames import FrameReader
from offpath.host_helper.opening import open_session

RESUME = negotiating.Resume(session=1, lineage="l", token="t" * 32, unanswered=[7])


@pytest.mark.parametrize("resume", [None, RESUME], ids=["first", "again"])
def test_only_a_first_attempt_that_is_not_answered_in_time_says_goodbye(
    resume: negotiating.Resume | None, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    token = tmp_path / "token"
    token.write_text("x" * 24)
    token.chmod(0o600)
    heard: list[object] = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "negotiate.sock"))
        listening.listen(1)

        def listen() -> None:
            with listening.accept()[0] as peer:
                frames = FrameReader()
                while data := peer.recv(65536):
                    heard.extend(control.decode(negotiating.TO_DAEMON, body) for body in frames.feed(data))

        daemon = threading.Thread(target=listen)
        daemon.start()
        with pytest.raises(PeerGone, match="no welcome within"):
            open_session(
                f"unix:{tmp_path}/negotiate.sock", tenant="ada", token_file=token, timeout_s=0.2, resume=resume
            )
        daemon.join(20)
    kinds = [type(said) for said in heard]
    assert kinds == [negotiating.Hello] + [control.Goodbye] * (resume is None)
