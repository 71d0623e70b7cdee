"""Whether other users of the machine may change a broker's folders or read its safety record; keys are seen to by secrets.py.

A user who can write to a folder can put an old safety record or another store in place of the broker's own, whatever the rights
of the files in it are. In a parent of it the whole folder can be replaced, unless the parent is sticky, as /tmp is: there
everybody renames only what is their own. A group that may change a parent is not objected to, because people share folders
of projects on purpose; one that may change the broker's own folder is, unless nobody else is in it.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import stat
from pathlib import Path

from parley.node.config import Config

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_READ = stat.S_IRGRP | stat.S_IROTH


def objection(config: Config) -> str:
    """Why a broker must not start with these folders and files, and what to do; empty: it may."""
    folders = dict.fromkeys(path.resolve() for path in (config.directory, config.safety.parent, config.data))
    parents = dict.fromkeys(parent for folder in folders for parent in folder.parents)
    found = [
        *(_changeable(path) for path in (*folders, config.path.resolve())),
        *(_replaceable(path) for path in parents if path not in folders),
        _touchable(config.safety),
    ]
    return next(filter(None, found), "")


def warning(config: Config) -> str:
    """What an operator should know of who can read the store; empty: nobody else can."""
    if not config.data.stat().st_mode & _OTHERS_READ:
        return ""
    return (
        f"{config.data} can be read by other users, and what was published is in it; "
        f"run: {_command('chmod 700', config.data)}"
    )


def _changeable(path: Path) -> str:
    found = path.stat()
    if found.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to another user, who can change what is in it; run the broker as its owner, or make it your own"
    by_others = found.st_mode & stat.S_IWOTH
    if by_others or (found.st_mode & stat.S_IWGRP and has_strangers(found.st_gid)):
        return (
            f"{path} can be changed by other users, who could give the broker another safety record or store; "
            f"run: {_command('chmod go-w', path)}"
        )
    return ""


def _replaceable(parent: Path) -> str:
    mode = parent.stat().st_mode
    if not mode & stat.S_IWOTH or mode & stat.S_ISVTX:
        return ""
    return (
        f"{parent} can be changed by everybody, so the broker's folder below it can be replaced; "
        f"run: {_command('chmod o-w', parent)}"
    )


def _touchable(record: Path) -> str:
    """In the words of secrets.py, and for the same reason: what others change, the broker would believe."""
    found = record.stat()
    if found.st_uid not in (os.geteuid(), 0):
        return f"{record} belongs to another user, who can read and change it; run the broker as its owner"
    if found.st_mode & _OTHERS:
        return f"{record} is open to other users; run: {_command('chmod 600', record)}"
    return ""


def has_strangers(gid: int) -> bool:
    """Whether somebody else than this user and root is in a group, or may be: many systems give every user a group alone."""
    try:
        group = grp.getgrgid(gid)
        members = {pwd.getpwnam(name).pw_uid for name in group.gr_mem}
    except KeyError:
        # In a container the process may have been given a group that has no name there, and no members.
        return gid not in (os.getegid(), *os.getgroups())
    members |= {user.pw_uid for user in pwd.getpwall() if user.pw_gid == gid}
    return bool(members - {os.geteuid(), 0})


def _command(words: str, path: Path) -> str:
    return f"{words} {shlex.quote(str(path))}"
