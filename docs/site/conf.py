"""The documentation site: the Markdown pages of the repository as they are. `make docs` builds it."""

project = "hpc_train"
copyright = "the authors of hpc_train"
extensions = ["myst_parser", "sphinx_copybutton"]
# The source is the repository, so that links between its pages lead where they lead in a checkout.
root_doc = "docs/index"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/**.md",
    "examples/*/README.md",
    "benchmarks/results/*/report.md",
]
# Sphinx would walk through all else that lies here.
exclude_patterns = [".*", "build", "*.egg-info", "hpc_train", "tests", "slurm", "runs", "data"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
highlight_language = "bash"
html_theme = "furo"
html_title = "hpc_train"
html_extra_path = ["root"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
