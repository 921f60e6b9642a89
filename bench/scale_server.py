"""Extender and reconciler in one process, and nothing else: what `bench.scale` measures. Arguments are settings."""

import gc
import importlib
import sys

if __name__ == "__main__":
    gc.disable()  # as the command line does
    runtime = importlib.import_module("ateplace.process.runtime")
    settings = importlib.import_module("ateplace.settings")
    roles = {name: importlib.import_module(f"ateplace.{name}.app").role for name in ("reconciler", "extender")}
    sys.exit(runtime.run(settings.load(flags=sys.argv[1:]).settings, roles))
