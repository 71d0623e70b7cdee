"""Checks that every relative link in README.md, docs/ and the other documents resolves, and prints their index."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_CODE = re.compile(r"^(```|~~~).*?^\1[^\n]*$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$", re.MULTILINE)
_ADDRESS = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def main() -> int:
    pages = documents(ROOT)
    for page in pages:
        print(f"  {page.relative_to(ROOT).as_posix():36} {title(page)}")
    faults = [fault for page in pages for fault in broken_links(page, ROOT)]
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{len(pages)} documents, {len(faults)} broken links", file=sys.stderr)
    return 1 if faults else 0


def documents(root: Path) -> list[Path]:
    """The Markdown files of the project: those in its root, then all of docs/ and formal/."""
    folders = sorted((root / "docs").rglob("*.md")) + sorted((root / "formal").glob("*.md"))
    return sorted(root.glob("*.md")) + folders


def title(page: Path) -> str:
    heading = _HEADING.search(_text(page))
    return heading.group(1) if heading else "(no title)"


def broken_links(page: Path, root: Path) -> list[str]:
    """A sentence for each relative link that leads nowhere, or to a heading that is not there."""
    faults = []
    for link in _LINK.findall(_CODE.sub("", _text(page))):
        if _ADDRESS.match(link):
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or not target.is_relative_to(root):
            faults.append(f"{page.relative_to(root).as_posix()}: {link} does not exist")
        elif fragment and target.suffix == ".md" and fragment not in anchors(target):
            faults.append(f"{page.relative_to(root).as_posix()}: {link} names no heading")
    return faults


def anchors(page: Path) -> set[str]:
    """The fragments that a page can be entered by, as the common renderers name them."""
    without_code_blocks = re.sub(r"^(```|~~~).*?^\1[^\n]*$", "", _text(page), flags=re.MULTILINE | re.DOTALL)
    return {_anchor(heading) for heading in _HEADING.findall(without_code_blocks)}


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
