"""Conspirator's table 4 from component prices and power: cost-effectiveness and power efficiency of the settings.

The paper compares a host CPU (setting 3) with a SmartNIC (setting 4). It states normalised prices and maximum power
without their sources. Here each price and each power is a named component with its source (`data/table_4.json`). The
throughputs are the paper's: no SmartNIC was available. A second part counts whole servers, GPUs included, for all four
settings, and gives the increase in throughput from which setting 4 pays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from offpath.cli.demo import samples

ASSUMED: Final = (
    "throughputs 1,000 and 270 as the paper states them: no SmartNIC was available to measure",
    "a server of the A100's years, with two Xeon Platinum 8380; the paper does not name its hosts",
    "the host's maximum power is at the wall, with fans and power supply; the SmartNIC's is at the card, as the paper's"
    " 150 W must be",
    "the server's price includes a network adapter; setting 4 gets no credit for leaving it out",
    "prices are of different years (2020 to 2026) and are not adjusted for inflation",
    "whole servers: two GPUs each; a setting's throughput is that of the end-to-end request",
)
_FILE: Final = "table_4.json"
_FACTORS: Final = (0.7, 1.3)
_GPUS: Final = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Costs:
    """What the table is computed from; prices in dollars, power in watts at the component."""

    server_usd: float
    dpu_usd: float
    gpu_usd: float
    host_w: float
    """Processors, memory and chipset together."""
    dpu_w: float
    gpu_w: float
    gpus: int
    fans: float
    """Part of the power supply's output that the fans draw, 0 to 1."""
    power_supply: float
    """Its efficiency, 0 to 1."""
    host_throughput: float
    dpu_throughput: float

    def wall_w(self, component_w: float) -> float:
        """Power at the wall of components that draw ``component_w``."""
        return component_w / (1 - self.fans) / self.power_supply


@dataclass(frozen=True, slots=True)
class Gains:
    """Setting 4 against setting 3; 0.17 is 17 % better."""

    per_price: float
    per_power: float
    even_price: float
    """Increase in a whole server's throughput from which it is worth the price of the SmartNIC."""
    even_power: float
    """The same for its power."""


def load() -> tuple[dict[str, Any], Costs]:
    """The shipped components with their sources, and the costs that follow."""
    told: dict[str, Any] = json.loads((samples.DATA / _FILE).read_text("utf-8"))
    prices, powers, shares, paper = told["prices_usd"], told["powers_w"], told["shares"], told["paper"]
    host_w = sum(powers[name]["value"] * powers[name]["count"] for name in ("processor", "memory", "chipset"))
    return told, Costs(
        server_usd=prices["server"]["value"], dpu_usd=prices["dpu"]["value"], gpu_usd=prices["gpu"]["value"],
        host_w=host_w, dpu_w=powers["dpu"]["value"], gpu_w=powers["gpu"]["value"], gpus=powers["gpu"]["count"],
        fans=shares["fans"]["value"], power_supply=shares["power_supply"]["value"],
        host_throughput=paper["host"]["throughput"], dpu_throughput=paper["dpu"]["throughput"],
    )  # fmt: skip


def gains(costs: Costs) -> Gains:
    """Both parts of the table as ratios.

    Source: Conspirator §4.1.2: throughput by purchase price, and by maximum power.
    """
    ratio = costs.dpu_throughput / costs.host_throughput
    three_usd, three_w = server(costs, dpu=False)
    four_usd, four_w = server(costs, dpu=True)
    return Gains(
        per_price=ratio * costs.server_usd / costs.dpu_usd - 1,
        per_power=ratio * costs.wall_w(costs.host_w) / costs.dpu_w - 1,
        even_price=four_usd / three_usd - 1,
        even_power=four_w / three_w - 1,
    )


def server(costs: Costs, *, dpu: bool) -> tuple[float, float]:
    """Price in dollars and power at the wall in watts of a server with its GPUs, and with a SmartNIC or without."""
    price = costs.server_usd + costs.gpus * costs.gpu_usd + (costs.dpu_usd if dpu else 0)
    power = costs.host_w + costs.gpus * costs.gpu_w + (costs.dpu_w if dpu else 0)
    return price, costs.wall_w(power)


def table_4() -> dict[str, Any]:
    """The table as plain values: the paper's figures, the computed ones, ranges and sensitivities."""
    told, costs = load()
    found = gains(costs)
    return {
        "paper": told["paper"], "assumed": list(ASSUMED),
        "components": {name: told[name] for name in ("prices_usd", "powers_w", "shares")},
        "computed": _rows(costs), "gain_per_price": round(found.per_price, 3),
        "gain_per_power": round(found.per_power, 3),
        "dpu_price_at_parity_usd": round(costs.server_usd * costs.dpu_throughput / costs.host_throughput),
        "gain_per_power_both_at_the_wall": round(
            (1 + found.per_power) * costs.dpu_w / costs.wall_w(costs.dpu_w) - 1, 3
        ),
        "servers": _servers(costs), "ranges": _ranges(told, costs), "sensitivity": _sensitivity(told["paper"], costs),
    }  # fmt: skip


def _rows(costs: Costs) -> dict[str, dict[str, float]]:
    """The computed table, the host's price normalised to 1,000 dollars."""
    rows = {}
    for name, usd, watts, throughput in (
        ("host", costs.server_usd, costs.wall_w(costs.host_w), costs.host_throughput),
        ("dpu", costs.dpu_usd, costs.dpu_w, costs.dpu_throughput),
    ):
        price = 1_000 * usd / costs.server_usd
        rows[name] = {
            "price_usd": round(price), "power_w": round(watts), "throughput": throughput,
            "per_price": round(throughput / price, 3), "per_power": round(throughput / watts, 3),
        }  # fmt: skip
    return rows


def _servers(costs: Costs) -> list[dict[str, Any]]:
    rows = []
    for setting, what, dpu in (
        ("1", "TCP, host CPU", False),
        ("2", "GPUDirect RDMA", False),
        ("3", "RDMA, host CPU", False),
        ("4", "Conspirator", True),
    ):
        usd, watts = server(costs, dpu=dpu)
        base_usd, base_w = server(costs, dpu=False)
        rows.append({
            "setting": setting, "what": what, "price_usd": round(usd), "power_w": round(watts),
            "worth_its_price_from": round(usd / base_usd - 1, 3), "worth_its_power_from": round(watts / base_w - 1, 3),
        })  # fmt: skip
    return rows


def _ranges(told: dict[str, Any], costs: Costs) -> list[dict[str, Any]]:
    """As computed, then with each component that its source gives as a range at the ends of it."""
    memory = told["powers_w"]["memory"]
    cases = [
        (f"{what} price {_dollars(price[end])}", replace(costs, **{field: price[end]}))
        for what, field in (("dpu", "dpu_usd"), ("gpu", "gpu_usd"))
        for price in (told["prices_usd"][what],)
        for end in ("low", "high")
    ]
    less_w = (memory["value"] - memory["low"]) * memory["count"]
    cases.append((f"memory {memory['low']} W a module", replace(costs, host_w=costs.host_w - less_w)))
    cases.append((f"fans {told['shares']['fans']['high']:.0%}", replace(costs, fans=told["shares"]["fans"]["high"])))
    return [{"case": name, **_rounded(gains(each))} for name, each in [("as computed", costs), *cases]]


def _dollars(value: float) -> str:
    return f"${value:,.0f}"


def _sensitivity(paper: dict[str, Any], costs: Costs) -> list[dict[str, Any]]:
    """Each input 30 % lower and 30 % higher; the same factor on the paper's own figures beside it."""
    own = 1 + paper["gain_per_price"], 1 + paper["gain_per_power"]
    rows: list[dict[str, Any]] = []
    for name, field, price_power, power_power in (
        ("server price", "server_usd", 1, 0),
        ("dpu price", "dpu_usd", -1, 0),
        ("gpu price", "gpu_usd", 0, 0),
        ("host power", "host_w", 0, 1),
        ("dpu power", "dpu_w", 0, -1),
        ("gpu power", "gpu_w", 0, 0),
        ("dpu throughput", "dpu_throughput", 1, 1),
    ):
        for factor in _FACTORS:
            changed = replace(costs, **{field: getattr(costs, field) * factor})
            rows.append({
                "input": name, "factor": factor, **_rounded(gains(changed)),
                "paper_per_price": round(own[0] * factor**price_power - 1, 3),
                "paper_per_power": round(own[1] * factor**power_power - 1, 3),
            })  # fmt: skip
    for gpus in _GPUS:
        rows.append({"input": "gpus", "value": gpus, **_rounded(gains(replace(costs, gpus=gpus)))})
    return rows


def _rounded(found: Gains) -> dict[str, float]:
    return {
        "gain_per_price": round(found.per_price, 3), "gain_per_power": round(found.per_power, 3),
        "worth_its_price_from": round(found.even_price, 3), "worth_its_power_from": round(found.even_power, 3),
    }  # fmt: skip


def text(data: dict[str, Any]) -> str:
    """As text: the table beside the paper's, whole servers, ranges, sensitivities, components and assumptions."""
    paper = data["paper"]
    lines = ["table 4: cost and power of a host CPU (setting 3) and of a SmartNIC (setting 4)"]
    lines.append(f"{'':12} {'price':>7} {'power':>7} {'throughput':>11} {'per price':>10} {'per watt':>9}")
    for whose, rows in (("paper", paper), ("computed", data["computed"])):
        for name, label in (("host", "host CPU"), ("dpu", "SmartNIC")):
            row = rows[name]
            lines.append(
                f"{label:12} {_dollars(row['price_usd']):>7} {row['power_w']:>5} W {row['throughput']:>11,}"
                f" {row['per_price']:>10.2f} {row['per_power']:>9.2f}   {whose}"
            )
    lines += [
        f"cost-effectiveness of the SmartNIC: paper +{paper['gain_per_price']:.0%}, computed"
        f" {data['gain_per_price']:+.1%}; parity at a SmartNIC price of {_dollars(data['dpu_price_at_parity_usd'])}",
        f"power efficiency of the SmartNIC: paper +{paper['gain_per_power']:.0%}, computed"
        f" {data['gain_per_power']:+.1%}; with both at the wall {data['gain_per_power_both_at_the_wall']:+.1%}",
        "", "whole servers; setting 4 pays if its end-to-end throughput is higher by at least",
    ]  # fmt: skip
    for row in data["servers"]:
        lines.append(
            f"  setting {row['setting']} {row['what']:16} {_dollars(row['price_usd']):>8} {row['power_w']:>6} W"
            f"   {row['worth_its_price_from']:.1%} (price), {row['worth_its_power_from']:.1%} (power)"
        )
    best = 1 / (1 - paper["shorter_end_to_end"]) - 1
    lines.append(f"  paper: end-to-end requests at best {paper['shorter_end_to_end']:.0%} shorter: {best:.0%} more")
    return "\n".join([*lines, "", *_sensitive(data), "", *_sources(data["components"]), *_assumed(data)])


def _sensitive(data: dict[str, Any]) -> Iterable[str]:
    head = "server pays from: price"
    yield f"{'gain of the SmartNIC per':28} {'price':>8} {'watt':>8} {head:>26} {'power':>7}   paper's figures"
    for row in [*data["ranges"], *data["sensitivity"]]:
        if "case" in row:
            name = row["case"]
        elif "value" in row:
            name = f"{row['input']} {row['value']}"
        else:
            name = f"{row['input']} x {row['factor']}"
        papers = f"   {row['paper_per_price']:+.0%}, {row['paper_per_power']:+.0%}" if "factor" in row else ""
        yield (
            f"  {name:26} {row['gain_per_price']:>+8.1%} {row['gain_per_power']:>+8.1%}"
            f" {row['worth_its_price_from']:>26.1%} {row['worth_its_power_from']:>7.1%}{papers}"
        )


def _sources(components: dict[str, Any]) -> Iterable[str]:
    units = {"prices_usd": "price", "powers_w": "power", "shares": "share"}
    for group, unit in units.items():
        for name, each in components[group].items():
            count = f"{each['count']} x " if each.get("count", 1) > 1 else ""
            value = {"price": f"${each['value']:,}", "power": f"{each['value']} W", "share": f"{each['value']:.0%}"}
            yield f"  {unit} of {name}: {count}{value[unit]}, {each['what']} ({each['source']})"


def _assumed(data: dict[str, Any]) -> Iterable[str]:
    return (f"  assumed: {each}" for each in data["assumed"])
