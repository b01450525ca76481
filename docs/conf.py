"""The documentation site, made by `make docs`: pages of Markdown, an API from docstrings, a page for each scheme."""

import re
import sys
from pathlib import Path

import posenc

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "posenc"
author = "The posenc authors"
copyright = "The posenc authors, Apache-2.0"
version = release = posenc.__version__
language = "en"

html_math_renderer = "mathml"

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "myst_nb",
    "mathml",  # these are in _ext
    "docstrings",
    "pictures",
    "explorer",
    "scheme_pages",
]
exclude_patterns = ["_*", "field-scripts", "images", "**/.ipynb_checkpoints"]
templates_path = ["_templates"]

myst_enable_extensions = ["dollarmath", "attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4
myst_dmath_double_inline = True

nb_execution_mode = "cache"  # a notebook is run anew when its code has changed
nb_execution_timeout = 300
nb_execution_raise_on_error = True

# Single backticks in docstrings name something of the library.
default_role = "py:obj"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"posenc {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "default"
pygments_dark_style = "github-dark"
