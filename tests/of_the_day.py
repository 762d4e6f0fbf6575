# SPDX-License-Identifier: Apache-2.0
"""What the default tests leave to other days: who has a long list takes what changed, and turns."""
import subprocess
import time

DAY_S = 86400
TODAY = int(time.time()) // DAY_S


def changed_files(source):
    """What differs from where this branch left its upstream or, where it has not, as in a clone,
    from what stood a day before the last commit. Empty without git or without its history."""
    def git(*arguments):
        done = subprocess.run(["git", "-C", str(source), *arguments], capture_output=True,
                              text=True, check=False)
        return done.stdout.split() if done.returncode == 0 else []
    head = git("rev-parse", "HEAD")
    base = git("merge-base", "HEAD", "@{upstream}")
    if head and base in ([], head):
        committed, = git("show", "-s", "--format=%ct", "HEAD")
        base = git("rev-list", "-1", "--first-parent", f"--before={int(committed) - DAY_S}", "HEAD")
    return set(git("diff", "--name-only", *base)) if base else set()


def turn(items, day, size):
    """As many of the items, other ones from day to day, until all had their turn."""
    begin = day * size % max(1, len(items))
    return (items[begin:] + items[:begin])[:size]
