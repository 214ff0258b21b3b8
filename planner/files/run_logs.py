"""Logs of a user's own runs: seconds per stage and iteration, whatever else a log holds.

Read are verl's metrics (`timing_s/*`, `perf/*`, `response_length/mean`) from its console, JSON lines or a CSV with a
column per metric, NeMo-RL's timing table on the console and its metrics as JSON lines, and a plain CSV with the columns
`stage,seconds[,iteration,response_mean,prompt_mean]` for everything else. Files are read as a stream, so size does not
matter. Lines that look like timings and cannot be read are named and skipped.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from planner.domain.stages import StageName
from planner.errors import InvalidInputError, printable
from planner.files.atomic import check_readable

MAX_LINE_BYTES = 2**20
"""Longer lines hold no metrics; what is beyond is not looked at."""
MAX_RECORDS = 200_000
MAX_BAD_SHOWN = 20
SHOWN_LENGTH = 60
MAX_SECONDS = 1e7
MAX_TOKENS = 1e9


class LogKind(StrEnum):
    """Who wrote a log."""

    VERL = "verl"
    NEMO_RL = "NeMo-RL"
    TABLE = "stage table"


class Timer(StrEnum):
    """What a logged duration covers, in the words of the documented CSV."""

    ROLLOUT = StageName.ROLLOUT.value
    REWARD = StageName.REWARD.value
    REFERENCE = StageName.REFERENCE_LOGPROB.value
    OLD_LOGPROB = StageName.OLD_LOGPROB.value
    LOGPROBS = "log-probs"
    """Old and reference log-probs in one."""
    VALUES = StageName.CRITIC_VALUE.value
    ACTOR_UPDATE = StageName.ACTOR_UPDATE.value
    CRITIC_UPDATE = StageName.CRITIC_UPDATE.value
    WEIGHT_SYNC = StageName.WEIGHT_SYNC.value
    REFIT = "refit"
    """Weight sync and waking the engine."""
    ITERATION = "iteration"
    BESIDE = "beside"
    """Validation and checkpoints: no part of an iteration."""


_VERL = {
    "gen": Timer.ROLLOUT, "gen_max": Timer.ROLLOUT, "reward": Timer.REWARD, "ref": Timer.REFERENCE,
    "old_log_prob": Timer.OLD_LOGPROB, "values": Timer.VALUES, "update_actor": Timer.ACTOR_UPDATE,
    "update_critic": Timer.CRITIC_UPDATE, "update_weights": Timer.WEIGHT_SYNC,
    "sync_rollout_weights": Timer.WEIGHT_SYNC, "param_sync": Timer.WEIGHT_SYNC,
    "step": Timer.ITERATION, "testing": Timer.BESIDE, "save_checkpoint": Timer.BESIDE,
}  # fmt: skip
_NEMO_RL = {
    "generation": Timer.ROLLOUT, "reward_calculation": Timer.REWARD, "policy_and_reference_logprobs": Timer.LOGPROBS,
    "logprob_inference_prep": Timer.LOGPROBS, "policy_training": Timer.ACTOR_UPDATE,
    "training_prep": Timer.ACTOR_UPDATE, "prepare_for_generation/total": Timer.REFIT, "weight_sync": Timer.WEIGHT_SYNC,
    "policy_training_prep": Timer.ACTOR_UPDATE, "value_inference_prep": Timer.VALUES, "value_inference": Timer.VALUES,
    "value_training_prep": Timer.CRITIC_UPDATE, "value_training": Timer.CRITIC_UPDATE,
    "exposed_generation": Timer.ROLLOUT,
    "total_step_time": Timer.ITERATION, "validation": Timer.BESIDE, "checkpointing": Timer.BESIDE,
}  # fmt: skip
_LENGTHS = {
    "response_length/mean": "response", "prompt_length/mean": "prompt", "mean_gen_tokens_per_sample": "response",
    "train/mean_gen_tokens_per_sample": "response", "response_mean": "response", "prompt_mean": "prompt",
}  # fmt: skip
_ITERATION_AGAIN = "perf/time_per_step"
"""The iteration in verl's logs that are cut down to `perf/*`; beside `timing_s/step` it is the same number."""
_STEPS = ("step", "_step", "training/global_step", "global_step", "iteration")

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STEP = re.compile(r"(?:^|[\s)])step:(\d{1,12}) - ")
_NUMBER = re.compile(r"(?:np\.\w+\()?\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*\)?")
_BANNER = re.compile(r"=+ *Step (\d{1,12})/")
_BULLET = re.compile(r"•\s*([\w /.-]+?):\s*(\S+?)s(?:\s*\([\d.]+%\))?\s*$")
_NEMO_TOTAL = "Total step time"
_NEMO_LENGTH = re.compile(r"•\s*Mean Generation Length:\s*([\d.]+)")


@dataclass(slots=True, kw_only=True)
class LogRecord:
    """One iteration as logged: seconds by timer, mean lengths in tokens where the log has them."""

    iteration: int | None = None
    seconds: dict[Timer, float] = field(default_factory=dict)
    response_tokens: float | None = None
    prompt_tokens: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLine:
    """A line that was skipped: where, its beginning, and why."""

    line: int
    text: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """What a log says. `bad` are the first of `num_bad` lines that were skipped."""

    file: str
    sha256: str
    kind: LogKind
    records: tuple[LogRecord, ...]
    bad: tuple[BadLine, ...]
    num_bad: int
    num_lines: int


def read_run_log(path: Path) -> RunLog | None:
    """The iterations of a log, or None when it has none; raises InvalidInputError when it is no readable file."""
    check_readable(path, "a log")
    digest = hashlib.sha256()
    reader = _Reader()
    num_lines = 0
    try:
        with path.open("rb") as stream:
            for num_lines, raw in enumerate(_lines(stream, digest), start=1):
                reader.take(num_lines, raw)
    except OSError as error:
        raise InvalidInputError(f"cannot be read: {error.strerror}", where=str(path)[:200]) from None
    reader.finish()
    if not reader.records:
        return None
    return RunLog(
        file=str(path), sha256=digest.hexdigest(), kind=reader.kind, records=tuple(reader.records),
        bad=tuple(reader.bad), num_bad=reader.num_bad, num_lines=num_lines,
    )  # fmt: skip


def _lines(stream: io.BufferedReader, digest: hashlib._Hash) -> Iterator[bytes]:
    """Lines without their ends; of very long ones only the beginning."""
    while raw := stream.readline(MAX_LINE_BYTES):
        digest.update(raw)
        line = raw
        while raw and not raw.endswith(b"\n"):
            raw = stream.readline(MAX_LINE_BYTES)
            digest.update(raw)
        yield line.rstrip(b"\r\n")


class _Reader:
    """Takes the lines of one file one by one."""

    def __init__(self) -> None:
        self.records: list[LogRecord] = []
        self.bad: list[BadLine] = []
        self.num_bad = 0
        self.kind = LogKind.TABLE
        self._header: list[str] | None = None
        self._open: LogRecord | None = None
        """The record of a NeMo-RL table, or of a stage table, that further lines go on with."""
        self._step: int | None = None
        self._length: float | None = None
        self._saw_json = False

    def take(self, number: int, raw: bytes) -> None:
        if len(self.records) >= MAX_RECORDS or not raw.strip():
            return
        if self._header is not None:
            self._row(number, raw.decode("utf-8", "replace"))
        elif b"timing_s/" in raw and b"step:" in raw and not raw.lstrip().startswith(b"{"):
            self._verl_line(number, raw.decode("utf-8", "replace"))
        elif raw.lstrip().startswith(b"{"):
            self._json_line(number, raw.decode("utf-8", "replace"))
        elif number == 1 and self._is_header(raw.decode("utf-8-sig", "replace")):
            return
        elif "•".encode() in raw or b" Step " in raw:
            self._nemo_line(number, raw.decode("utf-8", "replace"))
        elif self._saw_json:
            self._skip(number, raw.decode("utf-8", "replace"), "is not JSON")

    def finish(self) -> None:
        self._close()

    def _skip(self, number: int, text: str, reason: str) -> None:
        self.num_bad += 1
        if len(self.bad) < MAX_BAD_SHOWN:
            shown = printable(_COLOUR.sub("", text).strip()[:SHOWN_LENGTH])
            self.bad.append(BadLine(line=number, text=shown, reason=reason))

    def _close(self) -> None:
        if self._open is not None and self._open.seconds:
            self.records.append(self._open)
        self._open = None

    # ------------------------------------------------------------------------------------------ verl

    def _verl_line(self, number: int, text: str) -> None:
        """`step:12 - timing_s/gen:123.4 - ...`, perhaps after the prefix of a Ray worker."""
        plain = _COLOUR.sub("", text)
        start = _STEP.search(plain)
        if start is None:
            self._skip(number, plain, "has timings but no step")
            return
        metrics: dict[str, str] = {}
        for part in plain[start.end() :].split(" - "):
            name, colon, value = part.strip().rpartition(":")
            if colon:
                metrics[name] = value
            elif part.strip().startswith("timing_s/"):
                self._skip(number, plain, "breaks off in a timing")
                return
        self._add(number, plain, int(start.group(1)), metrics, LogKind.VERL)

    def _add(self, number: int, text: str, step: int | None, metrics: dict[str, str], kind: LogKind) -> None:
        """The record of named metrics as text; a timing that is no time spoils the line."""
        record = LogRecord(iteration=step)
        if "timing_s/step" not in metrics and _ITERATION_AGAIN in metrics:
            metrics = {**metrics, "timing_s/step": metrics[_ITERATION_AGAIN]}
        for name, value in metrics.items():
            timer = _timer_of(name)
            length = _LENGTHS.get(name)
            if timer is None and length is None:
                continue
            found = _number(value)
            if found is None or found > (MAX_SECONDS if timer is not None else MAX_TOKENS):
                self._skip(number, text, f"{name} is {printable(value.strip()[:20])!r}, no number that can be")
                return
            if timer is not None:
                record.seconds[timer] = record.seconds.get(timer, 0.0) + found
            elif length == "response":
                record.response_tokens = found or None
            else:
                record.prompt_tokens = found or None
        if record.seconds:
            self.kind = kind
            self.records.append(record)

    # ------------------------------------------------------------------------------------------ JSON lines

    def _json_line(self, number: int, text: str) -> None:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            # Consoles print Python dictionaries too; only a file of JSON lines has to be one throughout.
            if self._saw_json or "timing" in text:
                self._skip(number, text, "is not JSON")
            return
        if not isinstance(value, dict):
            return
        inner = value.get("data")
        metrics = {**value, **inner} if isinstance(inner, dict) else value
        texts = {key: str(item) for key, item in metrics.items() if isinstance(item, int | float | str)}
        if not any(_timer_of(key) is not None for key in texts):
            return
        self._saw_json = True
        is_verl = any(key.startswith("timing_s/") for key in texts)
        self._add(number, text, _step_of(texts), texts, LogKind.VERL if is_verl else LogKind.NEMO_RL)

    # ------------------------------------------------------------------------------------------ NeMo-RL

    def _nemo_line(self, number: int, text: str) -> None:
        """The bullets below `Timing:`; `Total step time` begins them."""
        plain = _COLOUR.sub("", text)
        banner = _BANNER.search(plain)
        if banner is not None:
            self._close()
            self._step, self._length = int(banner.group(1)), None
            return
        length = _NEMO_LENGTH.search(plain)
        if length is not None:
            self._length = _number(length.group(1))
            return
        bullet = _BULLET.search(plain)
        if bullet is None:
            if _NEMO_TOTAL in plain:
                self._skip(number, plain, "has no seconds")
            return
        name, seconds = bullet.group(1).strip(), _number(bullet.group(2))
        is_total = name == _NEMO_TOTAL
        timer = Timer.ITERATION if is_total else _NEMO_RL.get(name)
        if is_total:
            self._close()
            self._open = LogRecord(iteration=self._step, response_tokens=self._length)
        if timer is None or self._open is None:
            return
        if seconds is None or seconds > MAX_SECONDS:
            self._skip(number, plain, f"{name} has no seconds")
            return
        self.kind = LogKind.NEMO_RL
        self._open.seconds[timer] = self._open.seconds.get(timer, 0.0) + seconds

    # ------------------------------------------------------------------------------------------ CSV

    def _is_header(self, line: str) -> bool:
        try:
            names = [name.strip() for name in next(csv.reader([line]), [])]
        except csv.Error:
            # Carriage returns or very long cells: not a header that a program has written.
            return False
        is_table = "stage" in names and "seconds" in names
        if not is_table and not (len(names) > 1 and any(_timer_of(name) is not None for name in names)):
            return False
        self._header = names
        return True

    def _row(self, number: int, line: str) -> None:
        assert self._header is not None
        try:
            cells = next(csv.reader([line]), [])
        except csv.Error as error:
            self._skip(number, line, f"is no CSV: {error}")
            return
        if len(cells) != len(self._header):
            self._skip(number, line, f"has {len(cells)} cells, the header has {len(self._header)}")
            return
        row = {name: cell.strip() for name, cell in zip(self._header, cells, strict=True)}
        if "stage" in row and "seconds" in row:
            self._stage_row(number, line, row)
            return
        given = {name: cell for name, cell in row.items() if cell}
        is_verl = any(name.startswith("timing_s/") for name in given)
        self._add(number, line, _step_of(given), given, LogKind.VERL if is_verl else LogKind.NEMO_RL)

    def _stage_row(self, number: int, line: str, row: dict[str, str]) -> None:
        """One duration of the documented table; rows of one iteration stand together, or repeat no stage."""
        name = row["stage"].lower().replace("_", " ")
        timer = next((item for item in Timer if item.value.replace("-", " ") == name.replace("-", " ")), None)
        timer = timer or _timer_of(f"timing_s/{row['stage']}")
        seconds, step = _number(row["seconds"]), _step_of(row)
        if timer is None:
            self._skip(number, line, f"{printable(row['stage'][:30])!r} is no stage")
            return
        if seconds is None or seconds > MAX_SECONDS:
            self._skip(number, line, f"{printable(row['seconds'][:20])!r} is no time in seconds")
            return
        if self._open is None or self._open.iteration != step or (step is None and timer in self._open.seconds):
            self._close()
            self._open = LogRecord(iteration=step)
        self._open.seconds[timer] = seconds
        self._open.response_tokens = _length(row.get("response_mean", "")) or self._open.response_tokens
        self._open.prompt_tokens = _length(row.get("prompt_mean", "")) or self._open.prompt_tokens


def _timer_of(name: str) -> Timer | None:
    """The timer of a metric's name in verl or NeMo-RL."""
    if name.startswith("timing_s/"):
        return _VERL.get(name.removeprefix("timing_s/"))
    if name.startswith("timing/train/"):
        return _NEMO_RL.get(name.removeprefix("timing/train/"))
    return None


def _step_of(metrics: dict[str, str]) -> int | None:
    for name in _STEPS:
        text = metrics.get(name, "")
        value = _number(text)
        if value is not None and value < 1e12:
            return int(value)
    return None


def _length(text: str) -> float | None:
    value = _number(text)
    return value if value is not None and 0 < value <= MAX_TOKENS else None


def _number(text: str) -> float | None:
    """A finite number that is not negative, also as numpy prints it; None for anything else."""
    match = _NUMBER.fullmatch(text.strip()[:64])
    if match is None:
        return None
    value = float(match.group(1))
    return value if math.isfinite(value) and value >= 0 else None
