from pathlib import Path

from tools import check_docs


def test_every_link_in_the_documents_resolves() -> None:
    pages = check_docs.documents(check_docs.ROOT)
    assert [fault for page in pages for fault in check_docs.broken_links(page, check_docs.ROOT)] == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "other.md").write_text("# Two words\n\n## `code`, and more\n")
    page = tmp_path / "README.md"
    page.write_text(
        "# Title\n"
        "[good](docs/other.md) [folder](docs/) [up](#title) [there](docs/other.md#code-and-more)\n"
        "[elsewhere](https://example.org/nothing) `[code](nowhere.md)`\n"
        "```\n[a block](nowhere.md)\n```\n"
        "[gone](docs/gone.md) [outside](../outside.md) [no heading](docs/other.md#three-words)\n"
    )
    assert check_docs.broken_links(page, tmp_path) == [
        "README.md: docs/gone.md does not exist",
        "README.md: ../outside.md does not exist",
        "README.md: docs/other.md#three-words names no heading",
    ]


def test_documents_have_titles() -> None:
    untitled = [
        page for page in check_docs.documents(check_docs.ROOT) if check_docs.title(page) == "(no title)"
    ]
    assert untitled == []
