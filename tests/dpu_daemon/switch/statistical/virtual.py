"""A rack, senders and parameter servers in virtual time."""

from __future__ import annotations

from offpath.bindings.ina.packets import Packet
from offpath.dpu_daemon.switch.statistical.rack import Port, Rack, RackSettings
from offpath.host_helper.ina.statistical.endpoint import attach_of
from offpath.host_helper.ina.statistical.parameter_server import ParameterServer
from offpath.host_helper.ina.statistical.sender import Sender, Window

MS = 1_000_000
PAYLOAD = 1024
WIRE_BITS = 8 * (PAYLOAD + 32)
SETTINGS = RackSettings(("a", "b", "c", "d"), 0, 10e6, 40 * MS, 30 * 1056, 200 * 1056, 2_000 * MS)


def attached(rack: Rack, packet: Packet) -> Port:
    port = rack.attach(packet)
    assert isinstance(port, Port)
    return port


class Job:
    """Workers on ``servers`` and a PS on ``ps`` that always have something to send."""

    def __init__(self, rack: Rack, number: int, servers: str, ps: str, window: Window) -> None:
        self.rack, self.number = rack, number
        self.server = ParameterServer(number, len(servers), window.most, 10 * MS)
        self.port = attached(rack, attach_of(number, len(servers), ps, None))
        self.senders = {
            attached(rack, attach_of(number, len(servers), server, rank)): Sender(number, rank, len(servers), window)
            for rank, server in enumerate(servers)
        }
        self.results = 0

    def send(self, now_ns: int) -> None:
        for port, sender in self.senders.items():
            while len(sender._waiting) < 8:
                sender.offer(bytes(PAYLOAD))
            for packet in sender.packets(now_ns):
                self.rack.handle(port, packet, now_ns)
        for packet in self.server.due(now_ns):
            self.rack.handle(self.port, packet, now_ns)

    def receive(self, port: Port, packet: Packet, now_ns: int) -> None:
        if port is self.port:
            for each in self.server.data(packet, now_ns):
                self.rack.handle(port, each, now_ns)
        elif self.senders[port].receive(packet, now_ns) and port.rank == 0:
            self.results += 1


def run(rack: Rack, jobs: list[Job], from_ns: int, to_ns: int) -> None:
    """Virtual time, in steps of two milliseconds."""
    for now_ns in range(from_ns, to_ns, 2 * MS):
        for port, packet in rack.advance(now_ns):
            next(job for job in jobs if job.number == port.job).receive(port, packet, now_ns)
        for job in jobs:
            job.send(now_ns)


def rates(rack: Rack, jobs: list[Job], warm_s: int = 4, take_s: int = 6) -> list[float]:
    """Of each job, in bit/s, once windows have settled."""
    second = 1000 * MS
    run(rack, jobs, 0, warm_s * second)
    before = [job.results for job in jobs]
    run(rack, jobs, warm_s * second, (warm_s + take_s) * second)
    return [(job.results - was) * WIRE_BITS / take_s for job, was in zip(jobs, before, strict=True)]
