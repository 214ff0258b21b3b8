"""Text output of micro-benchmarks: nccl-tests, and `vllm bench serve`, `throughput` and `latency`.

What stands around it (MPI prefixes, NCCL's own messages, colours) is passed over; rows that look like results and
cannot be read are named.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from planner.errors import InvalidInputError, printable
from planner.files.atomic import check_readable
from planner.files.run_logs import MAX_BAD_SHOWN, SHOWN_LENGTH, BadLine

MAX_BYTES = 64 * 2**20
MAX_RANKS = 1_000_000


class LinkTest(StrEnum):
    """The tests of nccl-tests that are understood, by the name of their program."""

    ALL_REDUCE = "all_reduce_perf"
    ALL_GATHER = "all_gather_perf"
    REDUCE_SCATTER = "reduce_scatter_perf"
    ALL_TO_ALL = "alltoall_perf"
    SENDRECV = "sendrecv_perf"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRow:
    """One size: bytes as nccl-tests prints them, and the shorter of the out-of-place and in-place times in seconds."""

    num_bytes: float
    seconds: float
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkBench:
    """One run of one test. `gpu` is the device's name as printed; empty where the header is missing."""

    file: str
    sha256: str
    test: LinkTest
    num_ranks: int
    num_nodes: int
    gpu: str
    rows: tuple[LinkRow, ...]
    bad: tuple[BadLine, ...]


class EngineBenchKind(StrEnum):
    """Which benchmark of vLLM."""

    SERVE = "vllm bench serve"
    THROUGHPUT = "vllm bench throughput"
    LATENCY = "vllm bench latency"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBench:
    """What one benchmark of vLLM says. None where it does not say.

    `concurrency` are requests in flight, `num_requests` all; token counts are means per request.
    """

    file: str
    sha256: str
    kind: EngineBenchKind
    num_requests: int | None = None
    concurrency: float | None = None
    has_rate: bool = False
    """Requests came at a rate, so that their concurrency is not known."""
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    token_s: float | None = None
    """Mean seconds per output token after the first."""
    tokens_per_s: float | None = None
    """Output tokens of all requests."""
    batch_s: float | None = None
    """Seconds of one batch (`latency`)."""
    tp: int | None = None
    """From the printed arguments, where they are there."""


_RANK = re.compile(r"#\s+Rank\s+(\d+)\s.*?\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*?)\s*$")
_TEST = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|alltoall|sendrecv)_perf")
_ROW = re.compile(r"(?:^|[>\]]|\s)\s*(\d+)\s+(\d+)\s+([a-z]\w*)\s+(\S+)\s+(-?\d+)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)(.*)$")
_SERVE = "Serving Benchmark Result"
_SERVE_LINE = re.compile(r"^\s*([A-Z][\w ().,/]*?):\s+(\S+)\s*$")
_THROUGHPUT = re.compile(
    r"Throughput:\s+([\d.]+)\s+requests/s,\s+([\d.]+)\s+total tokens/s(?:,\s+([\d.]+)\s+output tokens/s)?"
)
_LATENCY = re.compile(r"Avg latency:\s+([\d.eE+-]+)\s+seconds")
_ARGUMENT = re.compile(r"\b(input_len|output_len|batch_size|num_prompts|tensor_parallel_size)=(\d+)")
_TOTALS = re.compile(r"Total num (prompt|output) tokens:\s+(\d+)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def read_benches(path: Path) -> tuple[tuple[LinkBench, ...], tuple[EngineBench, ...]]:
    """The benchmarks in a file, which may hold several; raises InvalidInputError when it cannot be read."""
    check_readable(path, "the output of a benchmark")
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES)
    except OSError as error:
        raise InvalidInputError(f"cannot be read: {error.strerror}", where=str(path)[:200]) from None
    digest = hashlib.sha256(content).hexdigest()
    lines = [_COLOUR.sub("", line) for line in content.decode("utf-8", "replace").splitlines()]
    links = _links(lines, str(path), digest) if any("busbw" in line for line in lines) else ()
    return links, _engines(lines, str(path), digest)


# ---------------------------------------------------------------------------------------------- nccl-tests


class _Link:
    """The run of one test while its lines are read."""

    def __init__(self, test: LinkTest | None) -> None:
        self.test = test
        self.ranks: set[int] = set()
        self.hosts: set[str] = set()
        self.gpu = ""
        self.rows: list[LinkRow] = []
        self.bad: list[BadLine] = []


def _links(lines: list[str], file: str, digest: str) -> tuple[LinkBench, ...]:
    found: list[_Link] = []
    named = next((test for test in LinkTest if test.value.removesuffix("_perf") in Path(file).name), None)
    for number, line in enumerate(lines, start=1):
        test = _TEST.search(line)
        if test is not None:
            named = LinkTest(f"{test.group(1)}_perf")
        rank = _RANK.search(line)
        if rank is not None and int(rank.group(1)) < MAX_RANKS:
            if not found or found[-1].rows:
                found.append(_Link(named))
            current = found[-1]
            current.ranks.add(int(rank.group(1)))
            current.hosts.add(rank.group(2))
            current.gpu = rank.group(3)
            current.test = named or current.test
        elif found and "#" not in line:
            _link_row(found[-1], number, line)
        elif found and "Collective test concluded" in line and test is not None:
            found[-1].test = named
    result = []
    for item in found:
        test_of = item.test or (LinkTest.ALL_REDUCE if _reduces(lines, item) else None)
        if not item.rows:
            continue
        if test_of is None:
            raise InvalidInputError(
                "does not say which test of nccl-tests it is from", where=file,
                accepted="a file name such as all_gather.txt, or output that starts with the command line",
            )  # fmt: skip
        result.append(
            LinkBench(
                file=file,
                sha256=digest,
                test=test_of,
                num_ranks=len(item.ranks),
                num_nodes=len(item.hosts),
                gpu=item.gpu,
                rows=tuple(item.rows),
                bad=tuple(item.bad),
            )
        )
    return tuple(result)


def _reduces(lines: list[str], item: _Link) -> bool:
    """Whether the rows name a reduction and send as many elements as they print: an all-reduce.

    A reduce-scatter prints its reduction too, with count * ranks * element size = size.
    """
    row = item.rows[0] if item.rows else None
    match = _ROW.search(lines[row.line - 1]) if row is not None else None
    if match is None or match.group(4) == "none":
        return False
    widths = {"float": 4, "half": 2, "bfloat16": 2, "double": 8, "int8": 1, "uint8": 1, "int32": 4, "int64": 8}
    width = widths.get(match.group(3), 0)
    return int(match.group(2)) * width == int(match.group(1))


def _link_row(current: _Link, number: int, line: str) -> None:
    """`size count type redop root time algbw busbw #wrong [time algbw busbw #wrong]`, times in us."""
    match = _ROW.search(line)
    if match is None:
        return
    rest = match.group(10).split()
    times = [match.group(6), *(rest[:1] if len(rest) >= 4 else ())]
    try:
        seconds = [float(text) * 1e-6 for text in times]
    except ValueError:
        seconds = []
    size = float(match.group(1))
    if not seconds or not all(0 < value < 1e6 for value in seconds):
        if len(current.bad) < MAX_BAD_SHOWN:
            text = printable(line.strip()[:SHOWN_LENGTH])
            current.bad.append(BadLine(line=number, text=text, reason="a time is no number"))
        return
    if 0 < size < 1e15:
        current.rows.append(LinkRow(num_bytes=size, seconds=min(seconds), line=number))


# ---------------------------------------------------------------------------------------------- vLLM


def _engines(lines: list[str], file: str, digest: str) -> tuple[EngineBench, ...]:
    result: list[EngineBench] = []
    arguments: dict[str, int] = {}
    totals: dict[str, int] = {}
    index = 0
    while index < len(lines):
        line = lines[index]
        if "Namespace(" in line:
            arguments = {name: int(value) for name, value in _ARGUMENT.findall(line) if len(value) < 12}
        for name, value in _TOTALS.findall(line):
            totals[name] = int(value[:15])
        throughput, latency = _THROUGHPUT.search(line), _LATENCY.search(line)
        if _SERVE in line:
            values, index = _serve_values(lines, index + 1)
            result.append(_serve(values, file, digest))
            continue
        if throughput is not None:
            # The totals follow in newer releases and stand before in none.
            later = dict(match for text in lines[index : index + 6] for match in _TOTALS.findall(text))
            totals |= {name: int(value[:15]) for name, value in later.items()}
            result.append(_throughput(throughput, arguments, totals, file, digest))
        elif latency is not None:
            result.append(_latency(latency, arguments, file, digest))
        index += 1
    return tuple(result)


def _serve_values(lines: list[str], start: int) -> tuple[dict[str, float], int]:
    """The named numbers of a serving result, and the index after it (a line of `=` alone)."""
    values: dict[str, float] = {}
    for index in range(start, len(lines)):
        line = lines[index].strip()
        if line and not line.strip("="):
            return values, index + 1
        match = _SERVE_LINE.match(line)
        if match is not None:
            value = _positive(match.group(2))
            if value is not None:
                values[match.group(1)] = value
    return values, len(lines)


def _serve(values: dict[str, float], file: str, digest: str) -> EngineBench:
    requests = values.get("Successful requests")
    given = values.get("Maximum request concurrency") or values.get("Max request concurrency")
    token_ms = values.get("Mean TPOT (ms)")
    prompts, outputs = values.get("Total input tokens"), values.get("Total generated tokens")
    return EngineBench(
        file=file,
        sha256=digest,
        kind=EngineBenchKind.SERVE,
        num_requests=int(requests) if requests else None,
        concurrency=min(given, requests) if given and requests else given or requests,
        has_rate=given is None and "Request rate configured (RPS)" in values,
        prompt_tokens=prompts / requests if prompts and requests else None,
        output_tokens=outputs / requests if outputs and requests else None,
        token_s=token_ms * 1e-3 if token_ms else None,
        tokens_per_s=values.get("Output token throughput (tok/s)"),
    )


def _throughput(
    match: re.Match[str], arguments: dict[str, int], totals: dict[str, int], file: str, digest: str
) -> EngineBench:
    rate, total, output = (_positive(text or "") for text in match.groups())
    if output is None and total and rate and arguments.get("output_len"):
        output = rate * arguments["output_len"]
    num = arguments.get("num_prompts")
    per_request = output / rate if output and rate else None
    prompt = (total - output) / rate if total and output and rate else None
    if num is None and totals.get("output") and per_request:
        num = round(totals["output"] / per_request)
    return EngineBench(
        file=file, sha256=digest, kind=EngineBenchKind.THROUGHPUT, num_requests=num, concurrency=num,
        prompt_tokens=prompt, output_tokens=per_request, tokens_per_s=output, tp=arguments.get("tensor_parallel_size"),
    )  # fmt: skip


def _latency(match: re.Match[str], arguments: dict[str, int], file: str, digest: str) -> EngineBench:
    batch = arguments.get("batch_size")
    return EngineBench(
        file=file, sha256=digest, kind=EngineBenchKind.LATENCY, num_requests=batch, concurrency=batch,
        prompt_tokens=arguments.get("input_len"), output_tokens=arguments.get("output_len"),
        batch_s=_positive(match.group(1)), tp=arguments.get("tensor_parallel_size"),
    )  # fmt: skip


def _positive(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if 0 < value < 1e15 else None
