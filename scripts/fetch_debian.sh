#!/bin/sh
# Fetches data files out of a Debian package into DEST, without root and without touching the system: apt works in a
# temporary folder that is removed at the end. Done before? Then nothing happens.
#
#     sh scripts/fetch_debian.sh wordnet .cache/wordnet
#     sh scripts/fetch_debian.sh fashion-mnist .cache/fashion-mnist
#     sh scripts/fetch_debian.sh emoji .cache/emoji
set -eu

fail() {
    echo "fetch_${name:-debian}: $1" >&2
    exit 1
}

[ $# -eq 2 ] && [ -n "$2" ] || fail "usage: fetch_debian.sh wordnet|fashion-mnist|emoji DEST"
name=$1
destination=$2

case $name in
wordnet)
    title="WordNet 3.0"
    package=wordnet-base
    folder=usr/share/wordnet
    files="data.noun data.verb data.adj data.adv"
    ;;
fashion-mnist)
    title="Fashion-MNIST"
    package=dataset-fashion-mnist
    folder=usr/share/datasets/fashion-mnist
    files="train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz t10k-images-idx3-ubyte.gz t10k-labels-idx1-ubyte.gz"
    ;;
emoji)
    title="Noto Color Emoji"
    package=fonts-noto-color-emoji
    folder=usr/share/fonts/truetype/noto
    files="NotoColorEmoji.ttf"
    ;;
*) fail "$name is not known: wordnet, fashion-mnist or emoji" ;;
esac

complete=yes
for file in $files copyright; do
    [ -s "$destination/$file" ] || complete=no
done
if [ "$complete" = yes ]; then
    echo "$title is already in $destination"
    exit 0
fi

command -v apt-get >/dev/null 2>&1 || fail "apt-get is missing; this needs Debian or Ubuntu (or unpack $package yourself)"
command -v dpkg >/dev/null 2>&1 || fail "dpkg is missing; this needs Debian or Ubuntu (or unpack $package yourself)"

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
(cd "$work" && private_apt download "$package") || fail "apt-get download $package failed: $(tail -n 1 "$work/log")"
dpkg -x "$work/$package"_*.deb "$work/package" >"$work/log" 2>&1 || fail "dpkg failed: $(tail -n 1 "$work/log")"

# Everything is copied under another name first: a killed script leaves no half file that looks whole.
mkdir -p "$destination" || fail "$destination cannot be made"
for file in $files; do
    cp "$work/package/$folder/$file" "$destination/.$file.new" || fail "$file could not be copied"
done
cp "$work/package/usr/share/doc/$package/copyright" "$destination/.copyright.new" || fail "the licence could not be copied"
for file in $files copyright; do
    mv "$destination/.$file.new" "$destination/$file"
done
echo "$title is in $destination"
