# SPDX-License-Identifier: Apache-2.0
"""What Sphinx needs to know. scripts/docs puts this file above the pages and writes index.rst."""
import pathlib

HERE = pathlib.Path(__file__).parent

project = "Stepwell"
author = "The Stepwell authors"
copyright = author  # the name is Sphinx's  # pylint: disable=redefined-builtin
version = release = (HERE / "version").read_text(encoding="utf-8").strip()

extensions = ["myst_parser"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["bindings/python/README.md", "docs/sphinx", "examples/data"]
# A link to a heading of a page is what a forge makes of the heading.
myst_heading_anchors = 4
highlight_language = "none"

# Every name of the API that is said anywhere is one that exists; types of C are no pages.
nitpicky = True
nitpick_ignore = [("c:identifier", name) for name in (
    "int32_t", "int64_t", "uint32_t", "uint64_t",
)]

smartquotes = False

html_theme = "furo"
html_title = f"Stepwell {version}"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False

linkcheck_timeout = 20
linkcheck_anchors = False

# One manual page for each header, beside those of the functions.
man_show_urls = False
man_pages = [("reference/index", "stepwell", "the C API of Stepwell", [], 3)] + [
    (f"reference/{page.stem}", f"stepwell_{page.stem}", f"what <stepwell/{page.stem}.h> declares",
     [], 3)
    for page in sorted((HERE / "reference").glob("*.rst")) if page.stem != "index"
]
