#!/bin/sh
# Serves the embedded model on a free loopback port and checks it with curl and with the official `openai` Python
# client, which is installed into target/client-venv. Prints "N passed, N failed".
# usage: scripts/client_check.sh [PATH-TO-gemma4-serve [FLAG...]]
set -eu
cd "$(dirname "$0")/.."
server=${1:-target/debug/gemma4-serve}
[ $# -gt 0 ] && shift
[ -x "$server" ] || cargo build
venv=target/client-venv
if ! "$venv/bin/python" -c 'import openai' 2>/dev/null; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet openai
fi

work=$(mktemp -d)
# The limit ends the server even when this script is killed.
timeout 300 "$server" --host 127.0.0.1 --port 0 --max-running 8 --drain-delay 0 "$@" >"$work/out" 2>"$work/err" &
pid=$!
trap 'kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; rm -rf "$work"' EXIT
tries=0
until url=$(sed -n 's|^listening on \(http://[^ ]*\).*|\1|p' "$work/out") && [ -n "$url" ] &&
    curl -sf -o "$work/ready" "$url/health/ready"; do
    tries=$((tries + 1))
    if [ $tries -gt 600 ] || ! kill -0 "$pid" 2>/dev/null; then
        cat "$work/err" >&2
        echo "the server did not become ready" >&2
        exit 1
    fi
    sleep 0.1
done

passed=0 failed=0
fact() { # TEXT COMMAND...: one fact, true when the command succeeds
    text=$1
    shift
    if "$@" >/dev/null 2>&1; then
        passed=$((passed + 1)) && echo "ok   curl: $text"
    else
        failed=$((failed + 1)) && echo "FAIL curl: $text"
    fi
}
ask() { curl -sS --max-time 60 "$url/v1/completions" -H 'Content-Type: application/json' -d "$1"; }

ask '{"prompt":"Hello","max_tokens":8}' >"$work/whole"
fact "an answer is one JSON object with a finish reason" grep -q '^{.*"finish_reason":"[a-z]*".*}$' "$work/whole"
fact "with usage" grep -q '"usage":{"prompt_tokens":[0-9]*,"completion_tokens":8,' "$work/whole"
curl -sSN --max-time 60 "$url/v1/completions" -d '{"prompt":"Hello","max_tokens":8,"stream":true}' >"$work/stream"
fact "a stream is events that end with [DONE]" [ "$(tail -n 2 "$work/stream" | head -n 1)" = 'data: [DONE]' ]
fact "of several chunks" [ "$(grep -c '^data: {' "$work/stream")" -gt 3 ]
curl -sS --max-time 60 "$url/v1/chat/completions" \
    -d '{"messages":[{"role":"user","content":"What is the capital of France?"}]}' >"$work/chat"
fact "a chat has the right answer" grep -q '"message":{"role":"assistant","content":"[^"]*Paris' "$work/chat"
fact "a bad body is a 400" [ "$(ask '{' | grep -c malformed_json)" = 1 ]
fact "models are listed" curl -sf "$url/v1/models"
fact "liveness is 200" curl -sf "$url/health/live"
metric() { curl -sf "$url/metrics" | grep -c "^gemma4_$1\$"; }
fact "metrics count what was served" [ "$(metric 'requests_total{outcome="length"} 2')" = 1 ]
fact "what was sent by curl is not running any more" [ "$(metric 'requests_running 0')" = 1 ]

if "$venv/bin/python" scripts/openai_client.py "$url/v1"; then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
fi

kill "$pid"
code=0
wait "$pid" || code=$?
fact "after SIGTERM the server exits with 0" [ "$code" = 0 ]
echo "client_check: $passed passed, $failed failed"
[ "$failed" = 0 ]
