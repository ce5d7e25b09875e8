#!/bin/sh
# Fetches the WordNet 3.0 data files of Debian's package wordnet-base into DEST, without root and without touching the
# system: apt works in a temporary folder that is removed at the end. Done before? Then nothing happens.
#
#     sh scripts/fetch_wordnet.sh .cache/wordnet
set -eu

files="data.noun data.verb data.adj data.adv"

fail() {
    echo "fetch_wordnet: $1" >&2
    exit 1
}

[ $# -eq 1 ] && [ -n "$1" ] || fail "usage: fetch_wordnet.sh DEST"
destination=$1

complete=yes
for file in $files copyright; do
    [ -s "$destination/$file" ] || complete=no
done
if [ "$complete" = yes ]; then
    echo "WordNet is already in $destination"
    exit 0
fi

command -v apt-get >/dev/null 2>&1 || fail "apt-get is missing; this needs Debian or Ubuntu (or unpack WordNet 3.0 yourself)"
command -v dpkg >/dev/null 2>&1 || fail "dpkg is missing; this needs Debian or Ubuntu (or unpack WordNet 3.0 yourself)"

work=$(mktemp -d) || fail "no temporary folder could be made"
clean() {
    rm -rf "$work"
    for file in $files copyright; do
        rm -f "$destination/.$file.new"
    done
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/package"

private_apt() {
    apt-get -qq -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o Debug::NoLocking=1 \
        -o APT::Sandbox::User= "$@" >"$work/log" 2>&1
}

private_apt update || fail "apt-get update failed: $(tail -n 1 "$work/log")"
(cd "$work" && private_apt download wordnet-base) || fail "apt-get download wordnet-base failed: $(tail -n 1 "$work/log")"
dpkg -x "$work"/wordnet-base_*.deb "$work/package" >"$work/log" 2>&1 || fail "dpkg failed: $(tail -n 1 "$work/log")"

# Everything is copied under another name first: a killed script leaves no half file that looks whole.
mkdir -p "$destination" || fail "$destination cannot be made"
for file in $files; do
    cp "$work/package/usr/share/wordnet/$file" "$destination/.$file.new" || fail "$file could not be copied"
done
cp "$work/package/usr/share/doc/wordnet-base/copyright" "$destination/.copyright.new" || fail "the licence could not be copied"
for file in $files copyright; do
    mv "$destination/.$file.new" "$destination/$file"
done
echo "WordNet 3.0 is in $destination"
