#!/bin/sh
# sh start_superlink.sh [ADDRESS [PORT]]: the server. It listens for SuperNodes and for `flwr`, with TLS; a SuperNode must
# be registered. Nothing is installed at run time: both sides run the Collegium that is installed there.
set -eu
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
CERTIFICATES="${CERTIFICATES:-certificates}"
exec flower-superlink --host "${1:-0.0.0.0}" --port "${2:-8000}" \
  --ssl-ca-certfile "$CERTIFICATES/ca.crt" \
  --ssl-certfile "$CERTIFICATES/server.crt" \
  --ssl-keyfile "$CERTIFICATES/server.key" \
  --enable-supernode-auth --disable-runtime-dependency-installation
