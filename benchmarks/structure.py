"""How easy the code is to read, in numbers: sizes, helpers, names, riddles, and a request's path.

    python benchmarks/structure.py            # the table in ARCHITECTURE.md
    python benchmarks/structure.py --list     # with every finding, to work through

The path is traced while one routed chat request goes through the real application to the sandbox
upstream. It counts our own functions and files that ran for that request, on every thread.
"""

from __future__ import annotations

import argparse
import ast
import functools
import operator
import re
import statistics
import threading
import time
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "router_service": ROOT / "router_service",
    "training": ROOT / "training" / "switchcraft_training",
}

PATHS = {"verified": ("Paris", "Rome", "Athens"), "theta=0.5": ("Berlin", "Oslo", "Vienna")}
"""Policies of the traced requests, of which only the first verifies, and a city for each request.
All texts differ, so that caches that routers share answer for none."""

# Phrases that a reader has to solve before the sentence makes sense. `[a-z] alone` is "only".
RIDDLES = re.compile(
    r"\b(is|are) none\b|\bof whom\b|\bwhom\b|\bwhat (came|comes|becomes|became|goes|went) of\b"
    r"|\bgoes on\b|\bgo on\b|\bwho is\b|\bwhose own\b|\bknown by\b|[a-z] alone\b(?! (with|in))"
    r"|\bwhoever\b|\bwherever it\b|\bwhere (it|one|that|there|this|nothing|nobody|none|they) "
    r"|\bsays? of\b|\bsaid of\b|\bis told\b|\bare told\b|\btold (of|apart)\b|\bspeaks? against\b"
    r"|\bno ground\b|\blet go of\b|\btakes? note of\b|\bheld (against|by whom)\b|\bcome(s)? of\b"
    r"|^\W*(What|Who|Whether|That) [a-z]+ (is|was|are|has|may|it|they|have|were|do|does)\b"
    r"|\bof its own\b|\bof which\b|\bby itself alone\b|\bas it (was|came|is) (said|asked)\b"
    r"|\bnobody\b|\bwho (asks|asked|holds|has|may|knows)\b",
    re.IGNORECASE,
)

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """A parsed source file."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def place(self) -> str:
        """Path relative to the repository."""
        return self.path.relative_to(ROOT).as_posix()

    def functions(self) -> Iterator[_Function]:
        """Yield every function and method, nested ones included."""
        for node in ast.walk(self.tree):
            if isinstance(node, _Function):
                yield node

    def prose(self) -> Iterator[tuple[int, str]]:
        """Yield the line and text of every docstring, attribute docstring and comment block."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                value = node.value.value
                if isinstance(value, str):
                    yield node.lineno, value
        block: list[str] = []
        first = last = 0
        with self.path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type != tokenize.COMMENT or token.string.startswith("# type:"):
                    continue
                if block and token.start[0] != last + 1:
                    yield first, " ".join(block)
                    block = []
                first, last = (token.start[0] if not block else first), token.start[0]
                block.append(token.string.lstrip("# "))
        if block:
            yield first, " ".join(block)


def load(folder: Path) -> list[Module]:
    """Parse every Python file below a folder."""
    modules = []
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text()
        modules.append(Module(path, text, ast.parse(text)))
    return modules


def single_use_helpers(modules: Sequence[Module]) -> list[str]:
    """Return private functions whose name is referenced exactly once in the package."""
    references: Counter[str] = Counter()
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Name):
                references[node.id] += 1
            elif isinstance(node, ast.Attribute):
                references[node.attr] += 1
    return [
        f"{module.place}:{function.lineno} {function.name}"
        for module in modules
        for function in module.functions()
        if function.name.startswith("_")
        and not function.name.startswith("__")
        and references[function.name] == 1
    ]


def duplicate_classes(modules: Sequence[Module]) -> dict[str, list[str]]:
    """Return public class names that a package defines more than once, with their places."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{module.place}:{node.lineno}")
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def riddles(modules: Sequence[Module]) -> tuple[list[str], int]:
    """Return the docstrings and comments that match `RIDDLES`, and how many there are in all."""
    found, total = [], 0
    for module in modules:
        for line, text in module.prose():
            total += 1
            match = RIDDLES.search(text)
            if match:
                sentence = " ".join(text.split())
                found.append(f"{module.place}:{line} [{match.group().strip()}] {sentence[:110]}")
    return found, total


def lengths(modules: Sequence[Module]) -> tuple[float, int, int]:
    """Return the median, the 90th percentile and the maximum of function lengths, in lines."""
    sizes = sorted(
        (function.end_lineno or function.lineno) - function.lineno + 1
        for module in modules
        for function in module.functions()
    )
    return statistics.median(sizes), sizes[int(0.9 * len(sizes))], sizes[-1]


def request_path(policy: str, cities: Sequence[str]) -> tuple[int, list[str], list[str], int]:
    """Return calls, functions and files of ours, and the deepest stack, of a routed chat request.

    Another request comes before the counted ones, because the first one loads lazily. The counted
    requests have other texts, so that the model runs and no cache answers. A function counts if it
    ran for each of them, so that work of the background does not count.
    """
    # Imported here: the other figures need neither the service nor its dependencies.
    import httpx  # noqa: PLC0415

    from router_service.artifact import SHIPPED  # noqa: PLC0415
    from router_service.router import Router  # noqa: PLC0415
    from router_service.sandbox.app import run_in_thread  # noqa: PLC0415
    from router_service.serving.app import create_app  # noqa: PLC0415
    from router_service.settings import Settings  # noqa: PLC0415
    from tests.serving import served  # noqa: PLC0415

    package = str(PACKAGES["router_service"])
    sandbox = str(PACKAGES["router_service"] / "sandbox")
    requests: list[Counter[tuple[str, str]]] = []
    deepest, is_counting = 0, False

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal deepest
        code = frame.f_code
        is_ours = code.co_filename.startswith(package) and not code.co_filename.startswith(sandbox)
        if not is_counting or event != "call" or not is_ours or code.co_name.startswith("<"):
            return  # comprehensions and lambdas are read with the function around them
        requests[-1][code.co_filename, code.co_qualname] += 1
        depth = 0
        above: FrameType | None = frame
        while above is not None:
            depth += above.f_code.co_filename.startswith(package)
            above = above.f_back
        deepest = max(deepest, depth)

    with run_in_thread() as url:
        router = Router.load(SHIPPED)
        # Before the server's threads start, because each takes over the function at its start.
        threading.setprofile(profile)
        with served(create_app(Settings.sandbox(url, router.arms), router)) as base_url:
            headers = {"x-switchcraft-policy": policy}
            with httpx.Client(base_url=base_url, headers=headers) as client:
                client.post("/v1/chat/completions", json=_body(f"a city like {cities[0]}"))
                for city in cities:
                    time.sleep(1)  # what the request before left to do in the background is done
                    requests.append(Counter())
                    is_counting = True
                    answer = client.post("/v1/chat/completions", json=_body(city))
                    time.sleep(0.1)  # as above, but shorter than the pause between synchronizations
                    is_counting = False
                    answer.raise_for_status()
        threading.setprofile(None)
    calls = functools.reduce(operator.and_, requests)  # the least count of each function
    functions = sorted(
        f"{Path(path).relative_to(ROOT)} {name} x{count}" for (path, name), count in calls.items()
    )
    files = sorted({str(Path(path).relative_to(ROOT)) for path, _ in calls})
    return calls.total(), functions, files, deepest


def _body(city: str) -> dict[str, object]:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"name": "get_weather", "description": "Current weather.", "parameters": parameters}
    return {
        "model": "switchcraft",
        "messages": [{"role": "user", "content": f"What is the weather in {city}?"}],
        "tools": [{"type": "function", "function": tool}],
    }


def main() -> None:
    """Print the table, and with `--list` every finding below it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print every finding")
    parser.add_argument("--under", default="", help="list findings below this path only")
    parser.add_argument("--no-path", action="store_true", help="skip tracing a request")
    arguments = parser.parse_args()
    listed: list[str] = []
    for name, folder in PACKAGES.items():
        modules = load(folder)
        functions = sum(1 for module in modules for _ in module.functions())
        helpers, twice = single_use_helpers(modules), duplicate_classes(modules)
        unclear, prose = riddles(modules)
        median, p90, longest = lengths(modules)
        lines = sum(module.text.count("\n") for module in modules)
        print(f"{name}: {len(modules)} files, {lines / len(modules):.0f} lines a file")
        print(f"  private helpers referenced once: {len(helpers) / functions:.1%} of {functions}")
        print(f"  docstrings and comments with a riddle: {len(unclear) / prose:.1%} of {prose}")
        print(f"  function lines: median {median:.0f}, p90 {p90}, longest {longest}")
        print(f"  public class names defined more than once: {len(twice)}")
        listed += [f"helper  {place}" for place in helpers]
        listed += [f"class   {cls}: {', '.join(places)}" for cls, places in twice.items()]
        listed += [f"riddle  {place}" for place in unclear]
    if not arguments.no_path:
        for policy, cities in PATHS.items():
            calls, ran, files, depth = request_path(policy, cities)
            print(f"a routed chat request, {policy}: {len(ran)} functions in {len(files)} files,")
            print(f"  {calls} calls, {depth} frames deep")
            listed += [f"path    {policy} {function}" for function in ran]
    if arguments.list:
        print("\n".join(line for line in listed if arguments.under in line))


if __name__ == "__main__":
    main()
