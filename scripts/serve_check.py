#!/usr/bin/env python3
"""Starts the server, streams from it with the standard library alone, reads its metrics, ends it by SIGTERM.

usage: serve_check.py SERVER KIND [FLAG...]    KIND: the device that must answer, cuda or soft
Prints a line a fact and "N passed, N failed". For machines without curl and the openai package; where they are,
client_check.sh says more.
"""
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

START_S, ANSWER_S = 120, 60


def main():
    server, kind, flags = sys.argv[1], sys.argv[2], sys.argv[3:]
    facts = []

    def fact(holds, text):
        facts.append(bool(holds))
        print("ok  " if holds else "FAIL", text, flush=True)

    with tempfile.TemporaryFile("w+") as page:
        command = [server, "--port", "0", "--drain-delay", "0", "--max-running", "8", *flags]
        process = subprocess.Popen(command, stdout=page, stderr=subprocess.STDOUT)
        try:
            url = ready(process, page)
            check(url, kind, fact)
            process.send_signal(signal.SIGTERM)
            fact(process.wait(30) == 0, f"SIGTERM drains, exit {process.returncode}")
        except Exception as error:  # every failure is a verdict
            fact(False, f"{type(error).__name__}: {error}")
        finally:
            if process.poll() is None:
                process.kill()
        page.seek(0)
        print(page.read())
    print(f"{sum(facts)} passed, {len(facts) - sum(facts)} failed")
    return 0 if facts and all(facts) else 1


def ready(process, page):
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        page.seek(0)
        bound = re.search(r"^listening on (http://\S+)", page.read(), re.M)
        try:
            if bound and get(bound[1] + "/health/ready"):
                return bound[1]
        except OSError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"not ready: exit {process.poll()}")


def get(url):
    return urllib.request.urlopen(url, timeout=ANSWER_S).read().decode()


def complete(url, **fields):
    body = {"prompt": "Hello", "max_tokens": 32, "ignore_eos": True, "return_token_ids": True, **fields}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode())
    return urllib.request.urlopen(request, timeout=ANSWER_S).read().decode()


def check(url, kind, fact):
    alone = json.loads(complete(url))["choices"][0]["token_ids"]
    fact(len(alone) == 32, f"an answer of {len(alone)} tokens")
    lines = [line[6:] for line in complete(url, stream=True).splitlines() if line.startswith("data: ")]
    streamed = [t for line in lines[:-1] for choice in json.loads(line)["choices"] for t in choice["token_ids"]]
    fact(lines[-1] == "[DONE]" and streamed == alone, f"a stream of {len(lines)} events gives the same tokens")
    together = {}
    prompts = ["Hello" if i % 2 == 0 else [5 + i] * (3 + 7 * i) for i in range(8)]

    def ask(i):
        together[i] = json.loads(complete(url, prompt=prompts[i], max_tokens=32 if i % 2 == 0 else 9 + i))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(ANSWER_S)
    same = [together[i]["choices"][0]["token_ids"] == alone for i in range(0, 8, 2)]
    fact(len(together) == 8 and all(same), f"8 at once: {sum(same)} of 4 equal prompts give the solo tokens")
    metrics = get(url + "/metrics")
    fact(f'gemma4_device_info{{kind="{kind}"}} 1' in metrics, f"the device is of kind {kind}")
    value = lambda name: float(re.search(rf"^{re.escape(name)} (\S+)$", metrics, re.M)[1])
    regular, rebuild = (value(f'gemma4_steps_total{{kind="{kind}"}}') for kind in ("regular", "rebuild"))
    fact(regular > rebuild, f"{regular:.0f} regular steps, {rebuild:.0f} rebuilds")


if __name__ == "__main__":
    sys.exit(main())
