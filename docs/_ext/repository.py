"""What pages say as files of a repository, which the site says otherwise.

A <picture> for light and dark paper becomes two images that the theme shows by turns. What stands beside docs/ is no
page: CONTRIBUTING.md is included in one, the README's matter is on the first page, and of a folder there is its name.
"""

import re

from sphinx.application import Sphinx

PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]+)">\s*'
    r'<img alt="(?P<alt>[^"]*)" src="(?P<light>[^"]+)">\s*</picture>'
)
IMAGES = """```{{image}} {light}
:alt: {alt}
:class: only-light
```

```{{image}} {dark}
:alt: {alt}
:class: only-dark
```"""
PAGES = {"CONTRIBUTING.md": "contributing.md", "README.md": "index.md"}
OUTSIDE = re.compile(r"\[(?P<words>[^\]]*)\]\((?P<up>(?:\.\./)+)(?P<path>[\w.-]+(?:/[\w./-]+\.md)?)(?:#[\w-]+)?\)")


def _link(found: re.Match[str]) -> str:
    page = PAGES.get(found["path"])
    return f"[{found['words']}]({found['up'][3:]}{page})" if page else found["words"]


def exchange(app: Sphinx, docname: str, source: list[str]) -> None:
    text = PICTURE.sub(lambda found: IMAGES.format(**found.groupdict()), source[0])
    depth = docname.count("/") + 1  # from a folder of docs, ../ is docs
    source[0] = OUTSIDE.sub(lambda found: _link(found) if found["up"].count("/") == depth else found[0], text)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", exchange)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
