#!/bin/sh
# sh start_supernode.sh SUPERLINK NUMBER DATA FOLDER [PORT]: a client. SUPERLINK is address:port; NUMBER is this client's own
# and stays the same; DATA are its labelled examples; FOLDER is private: features, states, Flower's files. PORT is used on
# this machine alone; two SuperNodes on one machine need two.
set -eu
umask 077
mkdir -p "$4"
chmod 700 "$4"
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_HOME="$4/flower" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
CERTIFICATES="${CERTIFICATES:-certificates}"
exec flower-supernode --superlink "$1" \
  --root-certificates "$CERTIFICATES/ca.crt" \
  --auth-supernode-private-key "${KEY:-$CERTIFICATES/client-$2.key}" \
  --host 127.0.0.1 --port "${5:-8180}" \
  --node-config "client=$2 data=\"$3\" folder=\"$4\" recipe=\"${RECIPE:-recipe.yaml}\""
