"""Would the search see a fault? Each bug is one line of a parser changed; the search must find it, and soon."""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from types import ModuleType

import pytest

from ..sizes import sized
from .engine import Finding, corpus, search
from .target import Modules
from .targets import targets

INPUTS = sized(quick=40_000, fast=40_000, slow=40_000, full=200_000)
SEEDS = sized(quick=1, fast=1, slow=1, full=5)

BUGS = [
    # parser, module, the line, what it becomes
    ("parse_request", "header", "if payload_bytes > max_payload_bytes:", "if payload_bytes > max_payload_bytes + 8:"),
    ("parse_request", "header", "if request_id == 0:", "if request_id < 0:"),
    ("parse_request", "header", "if flags & ~_KNOWN_FLAGS:", "if flags & ~(_KNOWN_FLAGS | 64):"),
    ("parse_request", "header", "if flags & FLAG_PARAMETERS and not count:", "if False:"),
    ("parse_request", "header", "        unpack_tensors(tensors, payload_bytes)\n", "        pass\n"),
    (
        "parse_request", "header", "if not flags & FLAG_PAYLOAD_CRC and payload_crc:",
        "if not flags & FLAG_PAYLOAD_CRC and payload_crc and count:",
    ),
    ("parse_answer", "header", "if result_bytes > max_result_bytes:", "if result_bytes > 2 * max_result_bytes:"),
    ("parse_answer", "header", "known_status is None or known_reason is None", "known_status is None"),
    ("parse_answer", "header", "if flags & ~FLAG_MORE:", "if flags & ~3:"),
    ("unpack_tensors", "header", "if offset + nbytes > total_bytes:", "if offset > total_bytes:"),
    ("unpack_tensors", "header", "if known is None:", "if code == 0:"),
    ("unpack_tensors", "header", "if want != nbytes and", "if want & 0xFFFFFFFF != nbytes & 0xFFFFFFFF and"),
    ("unpack_tensors", "header", "and 0 < want < nbytes)", "and want < nbytes)"),
    ("unpack_tensors", "header", "and offset % known[1]:", "and offset % known[1] and ndim:"),
    ("unpack_tensors", "header", "if any(packed[at + 1 : at + TENSOR_BYTES]):", "if packed[at + 1]:"),
    ("unpack_tensors", "header", "if ndim > MAX_DIMS or any(dims[ndim:]):", "if any(dims[ndim:]):"),
    ("parse_launch", "host", "        return nbytes == 0\n", "        return nbytes >= 0\n"),
    ("parse_launch", "host", "return nbytes % _ROWS.size == 0 and 0 <", "return 0 <"),
    ("parse_result", "host", "status > LAST_RESULT or", ""),
    ("parse_result", "host", "if len(message) < _RESULT.size:", "if not message:"),
    ("parse_result", "host", "(len(inline) != nbytes or nbytes", "(len(inline) < nbytes or nbytes"),
    ("parse_result", "host", "if not inline_flag and inline:", "if not inline_flag and inline and not count:"),
    ("parse_region", "regions", "if zero or zero2 or flag", "if zero2 or flag"),
    ("parse_region", "regions", "0 < numbers[-1] <= MOST", "0 <= numbers[-1] <= MOST"),
    ("session_frame", "sessions", "or version != VERSION or zero:", "or version != VERSION:"),
    ("session_frame", "sessions", "if len(body) > MAX_MESSAGE_BYTES:", "if len(body) > MAX_MESSAGE_BYTES + 1:"),
    ("session_frame", "sessions", "if bool(body) is not (kind == DATA):", "if not body and kind == DATA:"),
    ("comch_pieces", "pieces", "= bytes(self._parts) + piece[1:] if", "= piece[1:] if"),
    ("comch_pieces", "pieces", "        self._parts.clear()\n", "        pass\n"),
    ("comch_pieces", "pieces", "+ len(piece) - 1 > _FRAME_BYTES:", "> _FRAME_BYTES:"),
    ("frame_reader", "frames", "if not 0 < length <= MAX_FRAME_BYTES:", "if length > MAX_FRAME_BYTES:"),
    ("frame_reader", "frames", "            del self._buffer[:end]\n", "            self._buffer.clear()\n"),
    ("ina_frames", "ina", "if rank >= MOST_RANKS:", "if rank > MOST_RANKS:"),
    ("ina_frames", "ina", "if rank >= ranks or", "if rank > ranks or"),
    ("ina_frames", "ina", "or nbytes % size:", ":"),
    ("ina_frames", "ina", "if offset % CHUNK_BYTES or", "if"),
    ("ina_frames", "ina", "if version != VERSION or zero:", "if version != VERSION:"),
    ("ina_frames", "ina", "    _zero(body[18:])\n", ""),
    ("ina_frames", "ina", "            self._start = begin + length\n", "            self._start = self._end\n"),
    ("ina_packets", "packets", "if bitmap >> workers:", "if bitmap >> workers + 1:"),
    ("ina_packets", "packets", "or len(payload) % ELEMENT_BYTES:", ":"),
    ("ina_packets", "packets", "        del buffer[:at]\n", "        buffer.clear()\n"),
    ("ina_packets", "packets", "if flags & ~_FLAGS.get(kind, 0):", "if flags & ~0xF:"),
    ("ina_packets", "packets", "if psn not in _ANSWERS:", "if psn > 4:"),
    ("inc_packet", "key_value", "magic != MAGIC or zero or", "magic != MAGIC or"),
    ("inc_packet", "key_value", " or length > MOST_VALUE", ""),
    ("inc_packet", "key_value", "length != len(value)", "length > len(value)"),
    ("inc_packet", "key_value", "if version > MOST_VERSION:", "if version < 0:"),
    ("inc_packet", "key_value", " or flags > Flag.LEASE | Flag.HIT:", ":"),
    ("inc_controlled", "key_value", "_CONTROL.size + MOST_BODY or", "_CONTROL.size + 1 + MOST_BODY or"),
    ("inc_address", "key_value", "not 0 < int(found[2]) < 65_536", "not 0 < int(found[2]) < 65_537"),
    ("inc_address", "key_value", ".fullmatch(text)", ".match(text)"),
    ("control_tenant_to_manager", "inc_admin", "model_config = STRICT", "model_config = {**STRICT, 'strict': False}"),
    ("control_manager_to_inc_switch", "inc_messages", "= STRICT", "= {**STRICT, 'extra': 'ignore'}"),
    ("control_inc_switch_to_manager", "inc_messages", "= STRICT", "= {**STRICT, 'strict': False}"),
    ("control_manager_to_service", "inc_messages", "{2}){0,128}$", "{1}){0,256}$"),
    ("control_service_to_manager", "inc_messages", ", Field(max_length=MOST_ENTRIES)]", ", Field(max_length=99)]"),
    ("rank_file", "rank_file", "if sequence & 1 or not", "if not"),
    ("rank_file", "rank_file", "if zlib.crc32(body) != crc:", "if crc == 0:"),
    ("rank_file", "rank_file", "except SchedError as fault:", "except TypeError as fault:"),
    ("control_to_daemon", "control", "raw = document.read(body)", "raw = orjson.loads(body)"),
    ("control_to_daemon", "negotiating", "model_config = STRICT", "model_config = {**STRICT, 'strict': False}"),
    ("control_host_to_daemon", "control", "= STRICT", "= {**STRICT, 'extra': 'ignore'}"),
    ("control_to_requester", "control", "if isinstance(raw, dict) and raw", "if raw"),
    ("ticket", "tickets", "= self._offers.pop(_digest(ticket), None)", "= self._offers.get(_digest(ticket))"),
    ("ticket", "tickets", "if now_ns > offer.expires_ns:", "if now_ns > offer.expires_ns + 1:"),
    ("ticket_reply", "fabric", "or descriptors != 3 or", "or descriptors > 3 or"),
    ("gateway_head", "heads", 'if coding.lower() != "chunked":', 'if coding == "":'),
    ("gateway_head", "heads", "if len(pairs) > MOST_HEADERS:", "if len(pairs) > MOST_HEADERS * 9:"),
    ("gateway_chunks", "chunks", "begin = (_NEXT, at + 2) if", "begin = (_FIRST, at + 2) if"),
    ("gateway_chunks", "chunks", "self.is_over = not trailer[1]", "self.is_over = True"),
    ("gateway_body", "bodies", "memoryview(bytearray(most))", "memoryview(bytearray(most + 1))"),
    ("gateway_body", "bodies", "    if not engine.eof:\n", "    if engine.eof is None:\n"),
    ("gateway_infer", "inference", "left=left", "left=0"),
    ("gateway_infer", "inference", "except ControlError as fault", "except KeyError as fault"),
    ("gateway_grpc", "grpc_calls", "    if left:\n", "    if left > 2:\n"),
    ("gateway_grpc", "grpc_requests", "        raise broken() from None\n", "        raise\n"),
    ("config", "config.tables", 'extra="forbid", ', ""),
    ("config", "config.checks", "setdefault(tenant.name, at) != at:", "setdefault(tenant.name, at) < at - 1:"),
    ("config_toml", "config.sources", "except (tomllib.TOMLDecodeError, ValueError) as", "except KeyError as"),
]  # fmt: skip


def planted(module: ModuleType, line: str, becomes: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A copy of the module with the bug in it."""
    source = inspect.getsource(module)
    assert line in source, f"{module.__name__} has no line {line!r} any more: plant it anew"
    copy = types.ModuleType(f"planted_{module.__name__.rpartition('.')[2]}")
    monkeypatch.setitem(sys.modules, copy.__name__, copy)  # dataclasses and pydantic look their module up
    exec(compile(source.replace(line, becomes), f"planted {module.__name__}", "exec"), copy.__dict__)
    return copy


def module_with(where: str, line: str, becomes: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that the target calls, with the bug in it or, if ``where`` is a part of a package, in that part."""
    where, _, part = where.partition(".")
    module: ModuleType = getattr(Modules(), where)
    if not part:
        return planted(module, line, becomes, monkeypatch)
    inner = planted(importlib.import_module(f"{module.__name__}.{part}"), line, becomes, monkeypatch)
    monkeypatch.setitem(sys.modules, f"{module.__name__}.{part}", inner)
    monkeypatch.setattr(module, part, inner)
    if part == "sources":
        return inner
    return planted(importlib.import_module(f"{module.__name__}.sources"), "", "", monkeypatch)  # it imports ours


@pytest.mark.parametrize(("name", "where", "line", "becomes"), BUGS, ids=[f"{b[0]}-{b[2].strip()[:40]}" for b in BUGS])
def test_a_planted_bug_is_found(
    name: str, where: str, line: str, becomes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = module_with(where, line, becomes, monkeypatch)
    with targets(Modules().planted(**{where.partition(".")[0]: module})) as known:
        for seed in range(SEEDS):
            with pytest.raises(Finding):
                search(known[name], INPUTS, seed, corpus(name))
