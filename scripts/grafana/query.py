"""Asks a Prometheus each query of the dashboard, and how its rules are; fails if one has no data.

query.py http://HOST:PORT causeway.json [--gpu soft|N] [--no-rules]
"""
import argparse
import json
import sys
import time
import urllib.parse
import urllib.request

# What the dashboard's variables are here.
VARIABLES = {"$instance": ".*", "$vm": ".*", "$__rate_interval": "10s"}
# Said in the description of panels that need a GPU with sensors.
REAL = "Real GPUs only"
# Said in those that another program's metrics are for.
OTHERS = "causewayd's own metrics"


def ask(base, path, **args):
    url = base + path + "?" + urllib.parse.urlencode(args)
    with urllib.request.urlopen(url, timeout=20) as answer:
        return json.load(answer)["data"]


def rules(base):
    """The rules' health, once Prometheus has evaluated them."""
    for _ in range(100):
        found = [r for g in ask(base, "/api/v1/rules")["groups"] for r in g["rules"]]
        if all(r["health"] != "unknown" for r in found):
            break
        time.sleep(1)
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("base")
    parser.add_argument("dashboard")
    parser.add_argument("--gpu", default="soft")
    parser.add_argument("--no-rules", action="store_true", help="this Prometheus has none; what is said to be causewayd's own may be missing")
    args = parser.parse_args()
    with open(args.dashboard, encoding="utf-8") as f:
        panels = json.load(f)["panels"]
    bad = 0
    for panel in panels:
        for target in panel.get("targets", []):
            expr = target["expr"]
            for name, value in VARIABLES.items():
                expr = expr.replace(name, value)
            series = ask(args.base, "/api/v1/query", query=expr)["result"]
            verdict = "ok"
            if not series:
                sensors = REAL in panel.get("description", "") and args.gpu.startswith("soft")
                verdict = "needs a real GPU" if sensors else "NO DATA"
                if args.no_rules and OTHERS in panel.get("description", ""):
                    verdict = "causewayd's"
                bad += verdict == "NO DATA"
            value = ", ".join("%.4g" % float(s["value"][1]) for s in series[:3])
            print("%-32s %s  %d series  %-28s %s" % (panel["title"][:32], target["refId"], len(series), value, verdict))
    if args.no_rules:
        sys.exit(1 if bad else 0)
    found = rules(args.base)
    broken = [r["name"] for r in found if r["health"] != "ok"]
    firing = sorted({r["name"] for r in found if r["state"] != "inactive"})
    print("%d alerts evaluated, %d broken %s; pending or firing: %s" % (len(found), len(broken), " ".join(broken), ", ".join(firing) or "none"))
    sys.exit(1 if bad or broken or not found else 0)


main()
