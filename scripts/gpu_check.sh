#!/usr/bin/env bash
# On one GPU, in under 8 minutes: correctness, the kernels, and the methods side by side on a table that stays in
# host memory, larger than the buffers. Run it from the checkout, in the project's environment; writes one JSON.
#
#     scripts/gpu_check.sh [gpu-check.json]
set -uo pipefail

out=${1:-gpu-check.json}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# step NAME SECONDS COMMAND...: output and errors on the screen and in a file each, exit code and time in a third.
step() {
    local name=$1 limit_s=$2 began=$SECONDS
    shift 2
    echo "== $name: $*"
    # 3 leads to the file of errors, 4 to this function's own output: both files are complete when it returns.
    {
        {
            timeout "$limit_s" "$@" 2>&3 | tee "$work/$name.out"
            echo "${PIPESTATUS[0]} $((SECONDS - began))" >"$work/$name.status"
        } 3>&1 >&4 | tee "$work/$name.err" >&2
    } 4>&1
}

step doctor 30 nestpipe doctor --json
if ! python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "torch sees no CUDA device: nothing to check here" >&2
    exit 1
fi

# Each test compiles kernels of its own, so several at a time.
step tests 160 python -m pytest -q -n 8 -p no:cacheprovider --timeout 100 tests/kernels \
    tests/nestpipe/test_device_streams.py --deselect tests/kernels/test_aot_compile.py
step kernels 90 nestpipe kernels bench --json

# 4 million rows of 512 bytes and their state: 2 GiB in host memory, of which a batch needs a few per cent.
workload=(--set device=cuda --set num_rows=4000000 --set embedding_dim=128 --set batch_size=4096
    --out "$work/runs" --json)
remark=
# TorchRec's lookup runs on a GPU only with FBGEMM's CUDA build.
if python -c 'from importlib.metadata import distributions as d; import sys, fbgemm_gpu
sys.exit("fbgemm-gpu-cpu" in {one.metadata["Name"] for one in d()})'; then
    step run 180 nestpipe run torchrec torchrec-sparse-dist sync dbp fwp nestpipe --steps 20 --warmup 5 \
        --check exact "${workload[@]}"
else
    remark="TorchRec left out, and sync, which promises to equal it, unchecked: FBGEMM's CUDA build is not here"
    echo "== $remark"
    step run 90 nestpipe run sync dbp fwp nestpipe --steps 20 --warmup 5 "${workload[@]}"
    # sync is not listed here, so it is the reference of the others and needs none itself.
    step exact 90 nestpipe run dbp fwp nestpipe --steps 5 --warmup 1 --check exact "${workload[@]}"
fi

python - "$work" "$out" "$remark" <<'PYTHON'
import json
import sys
from pathlib import Path


def read_result(lines):
    """The last JSON document among the lines of a step's output, or None."""
    for line in reversed(lines):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except ValueError:
                continue
    return None


work, out, remark = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
steps = {}
for status in sorted(work.glob("*.status")):
    code, seconds = map(int, status.read_text().split())
    output, errors = (
        status.with_suffix(suffix).read_text(errors="replace").splitlines() for suffix in (".out", ".err")
    )
    result = read_result(output) or (output[-30:] if code else "".join(output[-1:]))
    steps[status.stem] = {"exit_code": code, "seconds": seconds, "result": result}
    if code:
        steps[status.stem]["errors"] = errors[-30:]
out.write_text(json.dumps({"steps": steps, "remarks": [remark] if remark else []}, indent=1) + "\n")
print(f"written: {out}")
sys.exit(any(step["exit_code"] for step in steps.values()))
PYTHON
