#!/usr/bin/env bash
# On one GPU, in under 8 minutes: correctness, the kernels, and the methods side by side on a table that stays in
# host memory, larger than the buffers. Run it from the checkout, in the project's environment; writes one JSON.
#
#     scripts/gpu_check.sh [gpu-check.json]
set -uo pipefail

out=${1:-gpu-check.json}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# step NAME SECONDS COMMAND...: its output on the screen and in a file, its exit code and time in another.
step() {
    local name=$1 limit_s=$2 began=$SECONDS
    shift 2
    echo "== $name: $*"
    timeout "$limit_s" "$@" 2>&1 | tee "$work/$name.log"
    echo "${PIPESTATUS[0]} $((SECONDS - began))" >"$work/$name.status"
}

step doctor 30 nestpipe doctor --json
if ! python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "torch sees no CUDA device: nothing to check here" >&2
    exit 1
fi

step tests 160 python -m pytest -q -p no:cacheprovider --timeout 100 tests/kernels \
    tests/nestpipe/test_device_streams.py --deselect tests/kernels/test_aot_compile.py
step kernels 90 nestpipe kernels bench --json

methods="sync dbp fwp nestpipe"
# TorchRec's lookup runs on a GPU only with FBGEMM's CUDA build.
if python -c 'from importlib.metadata import distributions as d; import sys, fbgemm_gpu
sys.exit("fbgemm-gpu-cpu" in {one.metadata["Name"] for one in d()})'; then
    methods="torchrec torchrec-sparse-dist $methods"
fi
# 4 million rows of 512 bytes and their state: 2 GiB in host memory, of which a batch needs a few per cent.
# shellcheck disable=SC2086
step run 180 nestpipe run $methods --steps 20 --warmup 5 --check exact --set device=cuda \
    --set num_rows=4000000 --set embedding_dim=128 --set batch_size=4096 --out "$work/runs" --json

python - "$work" "$out" <<'PYTHON'
import json
import sys
from pathlib import Path

work, out = map(Path, sys.argv[1:])
document = {}
for status in sorted(work.glob("*.status")):
    code, seconds = map(int, status.read_text().split())
    lines = status.with_suffix(".log").read_text(errors="replace").splitlines()
    last = lines[-1] if lines else ""
    try:
        result = json.loads(last)
    except ValueError:
        result = lines[-30:] if code else last
    document[status.stem] = {"exit_code": code, "seconds": seconds, "result": result}
out.write_text(json.dumps(document, indent=1) + "\n")
print(f"written: {out}")
sys.exit(any(step["exit_code"] for step in document.values()))
PYTHON
