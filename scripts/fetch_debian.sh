#!/bin/sh
# Fetches data files out of a Debian package, or the descriptions of all packages, into DEST, without root and without
# touching the system: apt works in a temporary folder that is removed at the end. Done before? Then nothing happens.
#
#     sh scripts/fetch_debian.sh wordnet .cache/wordnet
#     sh scripts/fetch_debian.sh fashion-mnist .cache/fashion-mnist
#     sh scripts/fetch_debian.sh emoji .cache/emoji
#     sh scripts/fetch_debian.sh sections .cache/debian-sections      (PYTHON="path/to/python" for another Python)
set -eu

fail() {
    echo "fetch_${name:-debian}: $1" >&2
    exit 1
}

[ $# -eq 2 ] && [ -n "$2" ] || fail "usage: fetch_debian.sh wordnet|fashion-mnist|emoji|sections DEST"
name=$1
destination=$2
python=${PYTHON:-python3}
options=

case $name in
wordnet)
    title="WordNet 3.0"
    package=wordnet-base
    folder=usr/share/wordnet
    files="data.noun data.verb data.adj data.adv copyright"
    ;;
fashion-mnist)
    title="Fashion-MNIST"
    package=dataset-fashion-mnist
    folder=usr/share/datasets/fashion-mnist
    files="train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz t10k-images-idx3-ubyte.gz t10k-labels-idx1-ubyte.gz"
    files="$files copyright"
    ;;
emoji)
    title="Noto Color Emoji"
    package=fonts-noto-color-emoji
    folder=usr/share/fonts/truetype/noto
    files="NotoColorEmoji.ttf copyright"
    ;;
sections)
    title="The list of Debian's package descriptions"
    package=
    options="-o Acquire::Languages=en -o Acquire::GzipIndexes=false"
    files="descriptions.jsonl.gz"
    ;;
*) fail "$name is not known: wordnet, fashion-mnist, emoji or sections" ;;
esac

complete=yes
for file in $files; do
    [ -s "$destination/$file" ] || complete=no
done
if [ "$complete" = yes ]; then
    echo "$title is already in $destination"
    exit 0
fi

command -v apt-get >/dev/null 2>&1 ||
    fail "apt-get is missing; this needs Debian or Ubuntu${package:+ (or unpack $package yourself)}"
if [ -n "$package" ]; then
    command -v dpkg >/dev/null 2>&1 || fail "dpkg is missing; this needs Debian or Ubuntu (or unpack $package yourself)"
else
    command -v "$python" >/dev/null 2>&1 || fail "$python is missing; name another Python in PYTHON"
fi

work=$(mktemp -d) || fail "no temporary folder could be made"
clean() {
    rm -rf "$work"
    for file in $files; do
        rm -f "$destination/.$file.new"
    done
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/package"

private_apt() {
    apt-get -qq -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o Debug::NoLocking=1 \
        -o APT::Sandbox::User= $options "$@" >"$work/log" 2>&1
}

private_apt update || fail "apt-get update failed: $(tail -n 1 "$work/log")"
if [ -n "$package" ]; then
    (cd "$work" && private_apt download "$package") || fail "apt-get download $package failed: $(tail -n 1 "$work/log")"
    dpkg -x "$work/$package"_*.deb "$work/package" >"$work/log" 2>&1 || fail "dpkg failed: $(tail -n 1 "$work/log")"
    cp "$work/package/usr/share/doc/$package/copyright" "$work/package/$folder/" || fail "the licence could not be copied"
    made=$work/package/$folder
else
    "$python" "$(dirname "$0")/join_descriptions.py" "$work/lists" "$work/package/$files" >"$work/log" 2>&1 ||
        fail "the descriptions could not be joined: $(tail -n 1 "$work/log")"
    made=$work/package
fi

# Everything is copied under another name first: a killed script leaves no half file that looks whole.
mkdir -p "$destination" || fail "$destination cannot be made"
for file in $files; do
    cp "$made/$file" "$destination/.$file.new" || fail "$file could not be copied"
done
for file in $files; do
    mv "$destination/.$file.new" "$destination/$file"
done
echo "$title is in $destination"
