"""bench/compare and bench/plot, driven as programs."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run(program, *arguments, stdin=None):
    return subprocess.run(
        [sys.executable, os.path.join(ROOT, "bench", program), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        input=stdin,
    )


class Compare(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def counting(self, name, *values):
        """A command that prints another of the values each time, and notes that it ran."""
        state = os.path.join(self.folder.name, name)
        listed = " ".join(str(value) for value in values)
        return (
            f"echo {name} >> {self.folder.name}/order; n=$(cat {state} 2>/dev/null || echo 0); "
            f"set -- {listed}; shift $n; echo $((n + 1)) > {state}; echo 'noise 77'; "
            f'echo "{{\\"speed\\": [{{\\"now\\": $1}}]}}"'
        )

    def compare(self, *arguments):
        done = run("compare", *arguments, "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_medians_ranges_and_ratios_of_alternating_rounds(self):
        data = self.compare(
            "--rounds", "3",
            "--a", "old", self.counting("old", 10, 20, 40), "--key", "speed.0.now",
            "--b", "new", self.counting("new", 30, 30, 80), "--regex", r'"now": (\d+)',
        )
        old, new = data["runs"]
        self.assertEqual(old["values"], [10, 20, 40])
        self.assertEqual((old["median"], old["low"], old["high"]), (20, 10, 40))
        self.assertEqual(new["ratio"], {"median": 2, "low": 1.5, "high": 3})
        self.assertNotIn("ratio", old)
        with open(os.path.join(self.folder.name, "order"), encoding="utf-8") as file:
            order = file.read().split()
        self.assertEqual(order, ["old", "new", "new", "old", "old", "new"])
        self.assertGreaterEqual(data["machine"]["cores"], 1)

    def test_warm_up_rounds_do_not_count(self):
        data = self.compare(
            "--warmup", "2", "--rounds", "1", "--key", "speed.0.now",
            "--run", "one", self.counting("one", 1, 2, 3),
        )
        self.assertEqual(data["runs"][0]["values"], [3])

    def test_time_and_bandwidth(self):
        data = self.compare(
            "--rounds", "1", "--time", "--run", "sleep", "sleep 0.2", "--run", "none", "true",
            "--bandwidth", "echo '{\"read_bandwidth_bytes_per_second\": 5e9}'",
        )
        self.assertGreaterEqual(data["runs"][0]["median"], 0.2)
        self.assertLess(data["runs"][1]["ratio"]["median"], 1)
        self.assertEqual(data["machine"]["read_bandwidth_bytes_per_second"], 5e9)

    def test_trouble_is_named(self):
        cases = [
            (["--run", "x", "exit 3", "--time"], "exit code 3"),
            (["--run", "x", "echo '{}'", "--key", "a.b"], "'a'"),
            (["--run", "x", "echo no", "--key", "a"], "no JSON"),
            (["--run", "x", "echo '{\"a\": \"1\"}'", "--key", "a"], "not a number"),
            (["--run", "x", "echo no", "--regex", "([0-9]+)"], "nothing matches"),
            (["--run", "x", "echo no", "--regex", "[0-9]+"], "no group"),
            (["--run", "x", "sleep 5", "--time", "--timeout", "0.1"], "not done"),
            (["--run", "x", "true"], "missing"),
            (["--time", "--run", "x", "true", "--run", "x", "true"], "same name"),
            ([], "no --run"),
        ]
        for arguments, message in cases:
            done = run("compare", "--rounds", "1", *arguments)
            self.assertNotEqual(done.returncode, 0, arguments)
            self.assertIn(message, done.stderr, arguments)
            self.assertNotIn("Traceback", done.stderr, arguments)

    def test_markdown_file_and_plot(self):
        path = os.path.join(self.folder.name, "result.json")
        done = run(
            "compare", "--rounds", "2", "--key", "v", "--unit", "tokens/s", "--json", path,
            "--markdown", "--run", "a", "echo '{\"v\": 2}'", "--run", "b & <c>", "echo '{\"v\": 5}'",
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| b & <c> | 5 (5-5) | 2.5 (2.5-2.5) |", done.stdout)
        plot = run("plot", path, "--title", "a & b")
        self.assertEqual(plot.returncode, 0, plot.stderr)
        xml.dom.minidom.parseString(plot.stdout)
        self.assertIn("2.50 x", plot.stdout)

    def test_plot_of_a_profile(self):
        part = {
            "part": "q, k, v", "ms_per_token": 0.5, "time_share": 0.6, "bytes_per_token": 1,
            "multiply_adds_per_token": 1, "bandwidth_share": 0.8, "peak_share": 0.1,
        }
        data = {"profile": {"decode": {"parts": [part]}, "prefill": {"parts": []}}}
        plot = run("plot", "-", "--pass", "decode", stdin=json.dumps(data))
        self.assertEqual(plot.returncode, 0, plot.stderr)
        xml.dom.minidom.parseString(plot.stdout)
        self.assertIn("80 %", plot.stdout)
        self.assertNotEqual(run("plot", "-", stdin="{}").returncode, 0)


if __name__ == "__main__":
    unittest.main()
