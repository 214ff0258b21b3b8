"""Shell scripts read without running them: what bash would have passed on, and nothing else happens."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from planner.adapters.findings import Severity
from planner.adapters.shell_script import Script, read_script, shown, unknowns
from planner.errors import InvalidInputError


def script(tmp_path: Path, text: str, **options: object) -> Script:
    file = tmp_path / "run.sh"
    file.write_text(text)
    return read_script(file, **options)  # type: ignore[arg-type]


def arguments(tmp_path: Path, text: str, **options: object) -> list[str]:
    launches = script(tmp_path, text, **options).launches
    assert launches, "no launch found"
    return [shown(word) for word in launches[-1].arguments]


CASES = {
    "plain words and quotes": ("python3 -m m a=1 'b=x y' \"c=$ d\" e\\ f\n", ["a=1", "b=x y", "c=$ d", "e f"]),
    "default of an unset variable": ("python3 -m m a=${X:-4} b=${X-5}\n", ["a=4", "b=5"]),
    "assigning default": (': "${X:=7}"\npython3 -m m a=$X\n', ["a=7"]),
    "alternative value": ("Y=1\npython3 -m m a=${Y:+yes} b=${X:+yes}\n", ["a=yes", "b="]),
    "arithmetic": ("N=3\npython3 -m m a=$((N * 8 + (2 ** 3) / 4)) b=$((N > 2 ? 5 : 6))\n", ["a=26", "b=5"]),
    "arithmetic as a default": ("A=2\nX=${X:-$(((A + 1) * 2))}\npython3 -m m a=$X\n", ["a=6"]),
    "arrays": ("A=(a=1 'b=x y')\nA+=(c=3)\npython3 -m m \"${A[@]}\" n=${#A[@]}\n", ["a=1", "b=x y", "c=3", "n=3"]),
    "an empty array is no argument": ('A=()\npython3 -m m "${A[@]}" b=1\n', ["b=1"]),
    "slices": ('A=(a b c d)\npython3 -m m "${A[@]:1:2}" ${A[-1]}\n', ["b", "c", "d"]),
    "keyed arrays": ("declare -A S=([small]=1 [big]=8)\nK=big\npython3 -m m n=${S[$K]}\n", ["n=8"]),
    "unquoted text splits": ('F="a=1   b=2"\npython3 -m m $F "$F"\n', ["a=1", "b=2", "a=1   b=2"]),
    "text of several lines": ('F="\n a=1 \\\n b=$((1+1)) \\\n"\nF="$F c=3"\npython3 -m m $F\n', ["a=1", "b=2", "c=3"]),
    "suffix and prefix": ("P=/x/y.tar.gz\npython3 -m m ${P##*/} ${P%.*} ${P%%.*} ${P#/x}\n",
                          ["y.tar.gz", "/x/y.tar", "/x/y", "/y.tar.gz"]),
    "replacement and case": ("P=a-b-c\npython3 -m m ${P//-/_} ${P/-/+} ${P^^} ${#P}\n",
                             ["a_b_c", "a+b-c", "A-B-C", "5"]),
    "continued lines": ("python3 -m m \\\n  a=1 \\\n  b=2\n", ["a=1", "b=2"]),
    "conditions": ("N=4\nif [ $N -gt 3 ] && [[ $N == 4* ]]; then X=a; elif (( N > 1 )); then X=b; else X=c; fi\n"
                   "python3 -m m x=$X\n", ["x=a"]),
    "case": ("M=8B\ncase $M in 4B|8B) T=2 ;; *) T=4 ;; esac\npython3 -m m tp=$T\n", ["tp=2"]),
    "loops": ("A=()\nfor i in 1 {2..3} $(seq 4 5); do A+=(k$i=$i); done\npython3 -m m ${A[@]}\n",
              ["k1=1", "k2=2", "k3=3", "k4=4", "k5=5"]),
    "counting loops": ("for ((i=0; i<3; i++)); do N=$i; done\nwhile [ $N -lt 9 ]; do N=$((N*2)); done\n"
                       "python3 -m m n=$N\n", ["n=16"]),
    "functions": ('f() { local x=$1; echo "x=$((x + 1))"; }\nx=5\npython3 -m m $(f 2) y=$x\n', ["x=3", "y=5"]),
    "function that launches": ('run() { python3 -m m tp=$1 "${@:2}"; }\nrun 4 a=1 b=2\n', ["tp=4", "a=1", "b=2"]),
    "here-document": ("N=2\nread -r -d '' C <<EOF\npython3 -m m a=$N b=${N} \"c=x y\"\nEOF\neval \"$C\"\n",
                      ["a=2", "b=2", "c=x y"]),
    "quoted here-document": ("read -r -d '' C <<'EOF'\npython3 -m m a=$N\nEOF\nN=3\neval \"$C\"\n", ["a=3"]),
    "inner shell": ("export N=2\nM=3\nbash -c 'python3 -m m a=$N b=${M:-unset}'\n", ["a=2", "b=unset"]),
    "launchers": ("torchrun --nnodes 2 --nproc_per_node=8 -m m a=1 2>&1 | tee log\n", ["a=1"]),
    "ray job": ("ray job submit --address=x --runtime-env-json='{\"a\": 1}' -- python3 -u -m m a=1\n", ["a=1"]),
    "environment before a command": ("X=1 HYDRA_FULL_ERROR=1 nohup python3 -m m a=1 > log 2>&1 &\n", ["a=1"]),
    "interpreter in an array": ("L=(uv run --extra vllm python3)\n\"${L[@]}\" -m m a=1\n", ["a=1"]),
    "slurm step": ("srun --nodes=2 --container-image x bash -c \"python3 -m m a=1\"\n", ["a=1"]),
    "positional defaults": ("N=${1:-8}\nshift\npython3 -m m n=$N \"$@\"\n", ["n=8"]),
    "directory of the script": ('D=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\npython3 -m m d=${D##*/}\n', None),
    "dead code": ("if false; then python3 -m m a=2; fi\nfalse && python3 -m m a=3\npython3 -m m a=1\n", ["a=1"]),
    "option that ends early": ("if [ \"$DEBUG\" = 1 ]; then exit 0; fi\npython3 -m m a=1\n", ["a=1"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_arguments_are_those_that_bash_would_pass(name: str, tmp_path: Path) -> None:
    text, expected = CASES[name]
    assert arguments(tmp_path, text) == (expected if expected is not None else [f"d={tmp_path.name}"])


def test_given_values_and_arguments_replace_defaults(tmp_path: Path) -> None:
    text = "N=${N:-1}\nG=$(nvidia-smi | wc -l)\npython3 -m m n=$N g=$G a=$1\n"
    assert arguments(tmp_path, text) == ["n=1", "g=$G", "a=$1"]
    assert arguments(tmp_path, text, given={"N": "4", "G": "8"}, arguments=["x"]) == ["n=4", "g=8", "a=x"]


@pytest.mark.parametrize("expression", ["$RANDOM", "$(date +%s)", "`hostname`", "$NOT_SET", "$((NOT_SET * 2))"])
def test_what_only_the_run_knows_stays_unknown(expression: str, tmp_path: Path) -> None:
    [launch] = script(tmp_path, f"X={expression}\npython3 -m m x=$X y=1\n").launches
    assert unknowns(launch.arguments[0]) in (("X",), ("NOT_SET",), ("$RANDOM",))
    assert launch.arguments[1] == "y=1"


def test_branches_on_unknown_values_agree_or_are_asked_for(tmp_path: Path) -> None:
    text = (
        "D=$(detect)\nA=1\nif [ $D = npu ]; then A=2; B=3; else B=3; fi\n"
        "case $D in npu) C=1 ;; gpu) C=1 ;; *) exit 1 ;; esac\npython3 -m m a=$A b=$B c=$C\n"
    )
    [launch] = script(tmp_path, text).launches
    assert [shown(word) for word in launch.arguments] == ["a=$D", "b=3", "c=1"]
    assert arguments(tmp_path, text, given={"D": "gpu"}) == ["a=1", "b=3", "c=1"]


def test_sourced_files_are_read_below_the_root_only(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "small.sh").write_text("ARGS=(--layers 2)\n")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "near.sh").write_text("N=3\n")
    file = tmp_path / "scripts" / "run.sh"
    file.write_text(
        'HERE="$(cd "$(dirname "$0")" && pwd)"\nsource "$HERE/near.sh"\nsource "$HERE/../models/small.sh"\n'
        'python3 train.py n=$N "${ARGS[@]}"\n'
    )
    inside = read_script(file, root=tmp_path)
    assert inside.launches[0].arguments == ("n=3", "--layers", "2") and not inside.findings
    outside = read_script(file)
    assert outside.launches[0].arguments[0] == "n=3"
    assert any("lies outside" in finding.message for finding in outside.findings)


def test_a_link_out_of_the_root_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("S=1\n")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link.sh").symlink_to(tmp_path / "secret")
    file = tmp_path / "in" / "run.sh"
    file.write_text("source link.sh\npython3 -m m s=$S\n")
    assert shown(read_script(file).launches[0].arguments[0]) == "s=$S"


@pytest.mark.parametrize(
    "text",
    [
        "python3 -m m a.x=1 \\ \n  a.y=2 \\\n  a.z=3\n",
        "python3 -m m a.x=1 \\\n  # a.w=4 \\\n  a.y=2 \\\n  a.z=3\n",
        "python3 -m m a.x=1\n  --flag 2 \\\n  a.z=3\n",
    ],
)
def test_lost_lines_are_errors(text: str, tmp_path: Path) -> None:
    found = script(tmp_path, text)
    assert "a.z=3" not in found.launches[0].arguments
    assert any(f.severity is Severity.ERROR and "not part of the launch" in f.message for f in found.findings)


def test_a_blank_after_a_backslash_is_pointed_at(tmp_path: Path) -> None:
    findings = script(tmp_path, "python3 -m m a.x=1 \\ \n  a.y=2\n").findings
    assert any(f.place.endswith("run.sh:1") and "followed by a blank" in f.message for f in findings)


HOSTILE = {
    "fork bomb": ":(){ :|:& };:\n",
    "removal": "rm -rf {d}/*; rm -rf ~\n",
    "killing": "pkill -9 python; kill -9 -1\n",
    "substitution": "x=$(touch {d}/pwned); y=`touch {d}/pwned`; z=<(touch {d}/pwned)\n",
    "redirection": "echo x > {d}/pwned; : >> {d}/pwned; exec 3> {d}/pwned\n",
    "evaluation": 'eval "touch {d}/pwned"; bash -c "touch {d}/pwned"; source <(echo touch {d}/pwned)\n',
    "python": "python3 -c 'open(\"{d}/pwned\", \"w\")'\n",
    "arithmetic": "x[$(touch {d}/pwned)]=1; echo $((a[$(touch {d}/pwned)]))\n",
    "traps": "trap 'touch {d}/pwned' EXIT DEBUG\n",
    "endless loops": "while true; do while true; do :; done; done\n",
    "endless recursion": "f() { f; f; }; f\n",
    "doubling text": "x=aaaaaaaa\nfor i in {1..60}; do x=$x$x; done\n",
    "doubling arrays": "x=(a)\nfor i in {1..60}; do x+=(${x[@]}); done\n",
    "long lines": "x=" + "a" * (2**20) + "\n",
    "deep substitution": "echo " + "$(" * 3000 + ")" * 3000 + "\n",
    "deep quotes": 'x=' + '"$(echo ' * 300 + ')"' * 300 + "\n",
    "deep conditions": "if true; then " * 3000 + "\n",
    "open brackets": "(" * 100_000,
    "long chains": "a && " * 5000 + "b\n",
    "large powers": "x=$((9**9**9**9)) y={1..999999999}\nprintf '%0999999999d' 1\n",
    "patterns": "x=" + "a" * 4000 + "\necho ${x##*a*a*a*a*a*b} ${x//a*a*a*a*b/c}\n[[ $x =~ (a*)*b ]]\n",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_scripts_touch_nothing_and_end(name: str, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    start = time.process_time()
    try:
        script(tmp_path, HOSTILE[name].replace("{d}", str(tmp_path)))
    except InvalidInputError as error:
        assert str(error)
    assert time.process_time() - start < 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "run.sh"]


def test_special_files_are_no_scripts(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("source /dev/zero\nsource sub\npython3 -m m a=1\n")
    (tmp_path / "sub").mkdir()
    assert read_script(tmp_path / "run.sh").launches[0].arguments == ("a=1",)
    with pytest.raises(InvalidInputError):
        read_script(Path("/dev/zero"))
