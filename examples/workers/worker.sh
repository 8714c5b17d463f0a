#!/bin/sh
# A worker in shell, with curl and jq: it runs a command for each task of a space.
#
#   KEEPSTATE_URL=http://127.0.0.1:8484 KEEPSTATE_KEY=ks_… ./worker.sh SPACE COMMAND [ARGUMENT...]
#
# The command gets the payload as JSON on its input. What it prints is the result; if it fails, its errors are
# stored and the task is tried again. SIGTERM lets the present task end. With IDLE=1, the worker ends when there
# is nothing to do.
set -u

space=$(jq -rn --arg name "$1" '$name | @uri')
shift
lease_s=30
stopping=
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'stopping=1' TERM INT

# In a file, because every user of the machine sees the arguments of a process.
printf 'Authorization: Bearer %s\n' "$KEEPSTATE_KEY" >"$folder/headers"

post() { # PATH: sends the JSON of its input, again while the server is away
    curl -sS --fail-with-body --retry 8 --retry-connrefused --retry-max-time 30 --max-time 60 \
        -H "@$folder/headers" -H 'Content-Type: application/json' --data-binary @- "$KEEPSTATE_URL/v1/$1?space=$space"
}

beat() { # CLAIM PROCESS: renews the lease, and ends the process if the claim is lost
    while sleep $((lease_s / 3)); do
        printf %s "$1" | jq -c --argjson lease_s "$lease_s" '. + {lease_s: $lease_s}' | post task/heartbeat >/dev/null
        [ $? -ne 22 ] || kill "$2"
    done
}

work() { # TASK COMMAND...
    claim=$(printf %s "$1" | jq -c '{id, token}')
    printf %s "$1" | jq -c .payload >"$folder/payload"
    shift
    "$@" <"$folder/payload" >"$folder/output" 2>"$folder/errors" &
    command=$!
    beat "$claim" "$command" &
    beating=$!
    wait "$command"
    code=$?
    while [ "$code" -gt 128 ] && kill -0 "$command" 2>/dev/null; do # a signal for the worker ended the waiting
        wait "$command"
        code=$?
    done
    kill "$beating" 2>/dev/null
    if [ "$code" -eq 0 ]; then
        jq -nc --argjson claim "$claim" --rawfile text "$folder/output" \
            '$claim + {result: ($text | rtrimstr("\n") as $plain | try ($plain | fromjson) catch $plain)}' | post task/complete
    else
        jq -nc --argjson claim "$claim" --arg code "$code" --rawfile text "$folder/errors" \
            '$claim + {error: "the command ended with \($code)\n\($text[:8000])"}' | post task/fail
    fi >/dev/null || echo "the end of $claim was not stored; its lease ends by itself" >&2
}

wait_s=20
[ -z "${IDLE:-}" ] || wait_s=0.2
while [ -z "$stopping" ]; do
    claimed=$(printf '{"lease_s": %s, "wait_s": %s, "worker": "shell-%s"}' "$lease_s" "$wait_s" "$$" | post tasks/claim) || {
        echo "no task could be claimed: $claimed" >&2
        sleep 1
        continue
    }
    task=$(printf %s "$claimed" | jq -c '.items[0] // empty')
    if [ -n "$task" ]; then
        work "$task" "$@"
    elif [ -n "${IDLE:-}" ]; then
        break
    fi
done
