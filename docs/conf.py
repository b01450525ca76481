"""The documentation site, made by `make docs`: pages of Markdown, an API from docstrings, a page for each scheme."""

import sys
from pathlib import Path

import posenc
from posenc_lab.explore.page import STATIC

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
    "repository",
    "explorer",
    "lesson",
    "scheme_pages",
]
exclude_patterns = ["_*", "images", "**/.ipynb_checkpoints"]
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

nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(torch|jaxtyping|collections|transformers|tokenizers|types|optional)\b.*"),
    (
        r"py:.*",
        r"Tensor|Float|Float64|Bool|Int|Shaped|Window|Features|Projected|Method|Order|Align|pathlib\.Path|dict\[str",
    ),
    (r"py:class", r"posenc(_check|_lab)?\.(\w+\.)*_\w+"),  # private bases
    (
        r"py:class",
        r"posenc\.(lowering|command|encoding\.context\.Feature|positions\.(layout|tiles)|models\.forward_pass|rotary|distributed\.sharding)\b.*",
    ),  # of the insides
    (r"py:class", r"posenc_check\.(run|trial)\.(Result|NotChecked|TrialResult|Check)|posenc_lab\.explore\.show\.Shown"),
    (r"py:class", r"posenc\.encoding\.(encoding|rotation)\.(Rotation|Band)"),
    # Names of others' code, of files, and of what is not public.
    (r"py:obj", r"\w+\.py|Positions\.grid\(.*|Chunk\(n\)|Inkling\w+|XPOS|Trunk|Interrupted|apply_scaling|another"),
]

html_theme = "furo"
html_title = f"posenc {release}"
html_static_path = ["_static", str(STATIC / "formula.css")]
html_css_files = ["formula.css", "site.css"]
html_js_files = ["tables.js"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "default"
pygments_dark_style = "github-dark"
