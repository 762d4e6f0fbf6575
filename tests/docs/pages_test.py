# SPDX-License-Identifier: Apache-2.0
"""Every relative link of every page leads to a file of the tree, every anchor to a heading; every
block says what it is."""
import pathlib
import subprocess
import tempfile
import unittest

import blocks
import pages


def tracked():
    """What a clone has: a link to anything else works on one machine alone. None: no repository."""
    done = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                          cwd=pages.ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True, check=False)
    return set(done.stdout.splitlines()) if done.returncode == 0 else None


def faults_of(page, text, files=None):
    for link in pages.links_of(text):
        path, _, anchor = link.partition("#")
        if "://" in path or path.startswith("mailto:"):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{link}: there is no {target.name}"
        elif target.is_dir():
            yield f"{link}: {target.name} is a folder, which a forge shows and Sphinx does not"
        elif files is not None and str(target.relative_to(pages.ROOT)) not in files:
            yield f"{link}: {target.name} is not of the tree"
        elif anchor and anchor not in pages.anchors_of(target.read_text(encoding="utf-8")):
            yield f"{link}: {target.name} has no such heading"


class Links(unittest.TestCase):
    def test_every_relative_link_of_every_page_leads_somewhere(self):
        files = tracked()
        checked = 0
        for page in pages.pages():
            text = page.read_text(encoding="utf-8")
            checked += len(pages.links_of(text))
            with self.subTest(page=page.name):
                self.assertEqual(list(faults_of(page, text, files)), [])
        self.assertGreater(checked, 50)

    def test_what_leads_nowhere_is_found(self):
        with tempfile.TemporaryDirectory(dir=".") as folder:
            page = pathlib.Path(folder).resolve() / "page.md"
            text = ("# A page: 2 `words`\n[up](#a-page-2-words) [file](other.md) [head](#b)\n"
                    "```text\n# no heading\n[no](link.md)\n```\n`[no](link)`\n"
                    "[too](#no-heading) [far](https://example.org/x) [here](.)\n")
            page.write_text(text, encoding="utf-8")
            self.assertEqual([fault.split(":")[0] for fault in faults_of(page, text)],
                             ["other.md", "#b", "#no-heading", "."])


def block(text):
    (made,) = pages.blocks_of("page", text)
    return made


class Blocks(unittest.TestCase):
    def test_every_block_of_every_page_is_run_or_says_why_not(self):
        counted = 0
        for page in pages.pages():
            for found in pages.blocks_of(page, page.read_text(encoding="utf-8")):
                counted += 1
                with self.subTest(block=found.name):
                    self.assertIsNone(blocks.fault_of(found))
        self.assertGreater(counted, 20)

    def test_every_frame_is_some_blocks(self):
        used = {name for page in pages.pages()
                for found in pages.blocks_of(page, page.read_text(encoding="utf-8"))
                for name in found.notes.get("run in", [])}
        self.assertEqual(used, {path.name for path in blocks.FRAGMENTS.iterdir()})

    def test_a_block_that_says_nothing_is_found(self):
        for text in ("```\nx\n```\n", "```rust\nx\n```\n", "<!-- not run: x -->\n```text\nx\n```\n",
                     "<!-- smaller: y as z -->\n```c\nx\n```\n",
                     "<!-- often: x -->\n```c\nx\n```\n"):
            self.assertIsNotNone(blocks.fault_of(block(text)), text)
        for text in ("```c\nx\n```", "```text\nx\n```", "<!-- not run: x -->\n```rust\nx\n```",
                     "<!-- smaller: x as z -->\n```c\nx\n```"):
            self.assertIsNone(blocks.fault_of(block(text)), text)

    def test_what_is_no_fence_is_found(self):
        for text in ("a\n\n    code\n", "```c\nx\n"):
            with self.assertRaises(ValueError):
                pages.blocks_of("page", text)

    def test_a_fragment_stands_in_its_frame_and_smaller(self):
        notes = "<!-- run in: arrays.py -->\n<!-- smaller: 3 as 2 -->\n"
        text = notes + "```python\nif 3:\n    f(3)\n```\n"
        self.assertIn("\n    if 2:\n        f(2)\n    assert", blocks.content_of(block(text)))


if __name__ == "__main__":
    unittest.main(verbosity=2)
