#!/usr/bin/env bash
# A worker in bash, with curl and jq:
#   FLOWFABRIC_URL=http://localhost:9090 FLOWFABRIC_TOKEN=ffp_... ./worker.sh
set -uo pipefail
worker=$(jq -n --arg i "$(hostname)-$$" '{worker_id: "bash", worker_instance_id: $i}')

# call PATH BODY: post JSON. The token goes through stdin, so that no list of processes shows it.
call() {
  curl --silent --show-error --fail-with-body --max-time 40 --json "$2" \
    --header @- "$FLOWFABRIC_URL$1" <<<"Authorization: Bearer $FLOWFABRIC_TOKEN"
}

# The task of this worker: JSON arguments in, JSON result out.
upper() { jq '.text | ascii_upcase'; }

run() {
  local lease result
  lease=$(jq -r .lease <<<"$1")
  if result=$(jq .arguments <<<"$1" | upper); then
    call /v1/leases/complete "$(jq -n --arg l "$lease" --argjson r "$result" '{lease: $l, result: $r}')"
  else
    call /v1/leases/fail "$(jq -n --arg l "$lease" '{lease: $l, reason: "upper failed"}')"
  fi
}

call /v1/workers/register "$(jq '. + {tasks: [{name: "upper"}], alive_for: "1h"}' <<<"$worker")" || exit 1
while true; do
  claim=$(jq '. + {tasks: ["upper"], wait_seconds: 20, lease_seconds: 60}' <<<"$worker")
  items=$(call /v1/workers/claim "$claim" | jq -c '.items[]') || { sleep 1; continue; }
  while read -r item; do
    [ -n "$item" ] && run "$item" >/dev/null
  done <<<"$items"
done
