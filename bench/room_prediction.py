#!/usr/bin/env python3
"""How well `tandem plan --room` predicts what `tandem run --room` does right after it.

    bench/room_prediction.py build/tandem --devices 2,3,4 --rounds 3

Starts a hub and, for each number of devices, workers of one thread that join a room; then measures
anew, plans and runs, alternating. Prints a line a round: tokens/s predicted, measured (median of
the runs, least, greatest) and their ratio, then both laps in parts: passes, hops, the host's own.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile

PROMPT = "Tell me a story about a king and his three sons."


def part(stages, key, mine):
    return sum(stage.get(key) or 0 for stage in stages if mine(stage))


class Room:
    def __init__(self, tandem, devices, memory):
        self.tandem = tandem
        self.memory = memory
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tandem-prediction-"))
        self.home = self.folder / "home"
        self.environment = dict(os.environ, TANDEM_HOME=str(self.home))
        self.processes = []
        line = self.start("hub", "--listen", "127.0.0.1:0", "--data", str(self.folder / "hub"), "--no-mdns")
        room = json.loads(self.run("room", "create", "--hub", line.split()[-1], "--objective", "memory",
                                   "--context", "512", "--json"))
        self.link = "@" + str(self.folder / "link")
        (self.folder / "link").write_text(room["link"] + "\n")
        for i in range(devices):
            self.start("worker", "--join", self.link, "--name", f"device-{i}", "--listen", "127.0.0.1:0",
                       "--threads", "1")

    def start(self, *arguments):
        process = subprocess.Popen([self.tandem, *arguments], env=self.environment, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.processes.append(process)
        return process.stdout.readline()

    def run(self, *arguments):
        return subprocess.run([self.tandem, *arguments], env=self.environment, text=True, check=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout

    def plan(self):
        shutil.rmtree(self.home / "measured", ignore_errors=True)
        return json.loads(self.run("plan", "--room", self.link, "--json", "--threads", "1",
                                   "--memory", self.memory))

    def answer(self, tokens):
        return json.loads(self.run("run", "--room", self.link, "--json", "--threads", "1", "--memory", self.memory,
                                   "--max-tokens", str(tokens), PROMPT))

    def close(self):
        for process in reversed(self.processes):
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tandem")
    parser.add_argument("--devices", default="2,3,4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=3, help="answers a round")
    parser.add_argument("--tokens", type=int, default=300, help="of an answer")
    parser.add_argument("--memory", default="0", help="that the one who asks lends")
    arguments = parser.parse_args()
    for devices in map(int, arguments.devices.split(",")):
        room = Room(arguments.tandem, devices, arguments.memory)
        try:
            for _ in range(arguments.rounds):
                plan = room.plan()
                answers = [room.answer(arguments.tokens) for _ in range(arguments.runs)]
                speeds = sorted(answer["decode_tokens_per_second"] for answer in answers)
                predicted = plan["predicted_tokens_per_second"]
                median = statistics.median(speeds)
                usual = min(answers, key=lambda one: abs(one["decode_tokens_per_second"] - median))
                own = lambda stage: stage.get("layers") == "head"
                # The last hop, back to the one who asks, is none of a stage's.
                back = max(stage["hop_ms"] for stage in usual["stages"])
                lap = [part(usual["stages"], "ms_per_pass", lambda s: not own(s)),
                       part(usual["stages"], "hop_ms", lambda s: True) + back,
                       part(usual["stages"], "ms_per_pass", own)]
                stages = plan["stages"]
                planned = [part(stages, "ms_per_pass", lambda s: True),
                           sum(s["hop_ms"] for s in stages) + stages[0]["hop_ms"]]
                host = plan["lap_ms"] - planned[0] - planned[1]
                print(f"{devices} devices: predicted {predicted:.0f}, measured {median:.0f} "
                      f"({speeds[0]:.0f}-{speeds[-1]:.0f}), {predicted / median:.2f}; "
                      f"predicted lap {1000 / predicted:.3f} ms (passes {planned[0]:.3f}, hops {planned[1]:.3f}, host {host:.3f}), "
                      f"measured {1000 / median:.3f} (passes {lap[0]:.3f}, hops {lap[1]:.3f}, head {lap[2]:.3f}, "
                      f"other {1000 / median - sum(lap):.3f})", flush=True)
        finally:
            room.close()


if __name__ == "__main__":
    main()
