#!/bin/sh
# Fetches the WordNet 3.0 data files of Debian's package wordnet-base into DEST; fetch_debian.sh beside it does the work.
#
#     sh scripts/fetch_wordnet.sh .cache/wordnet
set -eu

[ $# -eq 1 ] && [ -n "$1" ] || {
    echo "fetch_wordnet: usage: fetch_wordnet.sh DEST" >&2
    exit 1
}
set -- wordnet "$1"
. "${0%/*}/fetch_debian.sh"
