"""A <picture> for light and dark paper, as Markdown has it, becomes two images that the theme shows by turns."""

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


def exchange(app: Sphinx, docname: str, source: list[str]) -> None:
    source[0] = PICTURE.sub(lambda found: IMAGES.format(**found.groupdict()), source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", exchange)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
