"""Define the wordings of the calls of GorillaFileSystem: openings and objects for each case, and suffixes.

No word is the name of a function or parameter of the templated classes; no digits and no quotes, which mark values.
"""

from __future__ import annotations

from environments.bfcl.templated.shapes import Case, Suffix, absent, case, equals, given, suffix

CASES: dict[str, tuple[Case, ...]] = {
    "cat": (
        case(
            "show | read out | print",
            "everything in the file {file_name} | the whole text of {file_name} | all that {file_name} says",
        ),
    ),
    "cd": (
        case(
            "go | change | switch",
            "into the directory {folder} | over to the directory {folder} | to {folder} as working directory",
        ),
    ),
    "cp": (
        case(
            "copy | duplicate | clone",
            "{source} to {destination} | the item {source} into {destination} | {source} over to {destination}",
        ),
    ),
    "diff": (
        case(
            "compare | contrast | check",
            "{file_name1} against {file_name2} | how {file_name1} differs from {file_name2} | "
            "the differences of {file_name1} and {file_name2}",
        ),
    ),
    "du": (case("tell me | estimate | report", "the disk usage | how much disk is used | the used disk space"),),
    "echo": (
        case(
            "write | put | store",
            "{content} into the file {file_name} | the text {content} in {file_name} | "
            "{content} as text of {file_name}",
            given("file_name"),
        ),
        case(
            "output | say | repeat",
            "{content} on the screen | the text {content} in the terminal | {content} as text on screen",
        ),
    ),
    "find": (
        case(
            "locate | search for | track down",
            "items called {name} | whatever is called {name} | all entries called {name}",
            given("name"),
        ),
        case("locate | search for | track down", "all items | whatever there is | every one of the entries"),
    ),
    "grep": (
        case(
            "pick out | filter | extract",
            "rows of {file_name} that contain {pattern} | the rows in {file_name} with {pattern} | "
            "from {file_name} all rows with {pattern}",
        ),
    ),
    "ls": (
        case("list | show | give me", "the items here | what is in this directory | the entries of this directory"),
    ),
    "mkdir": (
        case(
            "create | make | set up",
            "the directory {dir_name} | one new directory called {dir_name} | the new directory {dir_name} here",
        ),
    ),
    "mv": (
        case(
            "move | relocate | transfer",
            "{source} to {destination} | the item {source} into {destination} | {source} over to {destination}",
        ),
    ),
    "pwd": (
        case(
            "tell me | report | show",
            "the directory i am in | where i am right now | in which directory i am working",
        ),
    ),
    "rm": (case("delete | remove | erase", "{file_name} | the item {file_name} | {file_name} from here"),),
    "rmdir": (
        case(
            "delete | remove | clear away",
            "the empty directory {dir_name} | {dir_name} as an empty directory | the now empty directory {dir_name}",
        ),
    ),
    "sort": (
        case(
            "order | arrange | alphabetize",
            "the rows of {file_name} | all rows in {file_name} | {file_name} row by row",
        ),
    ),
    "tail": (
        case(
            "show | print | give me",
            "the last {lines} rows of {file_name} | the final {lines} rows of {file_name} | "
            "{lines} rows from the end of {file_name}",
            given("lines"),
        ),
        case(
            "show | print | give me",
            "the last rows of {file_name} | the final part of {file_name} | the end of {file_name}",
        ),
    ),
    "touch": (
        case(
            "create | make | produce",
            "the empty file {file_name} | one new file called {file_name} | the new empty file {file_name} here",
        ),
    ),
    "wc": (
        case(
            "count | tell me | report",
            "the words in {file_name} | how many words {file_name} has | the number of words of {file_name}",
            equals("mode", "w"),
        ),
        case(
            "count | tell me | report",
            "the characters in {file_name} | how many characters {file_name} has | "
            "the number of characters of {file_name}",
            equals("mode", "c"),
        ),
        case(
            "count | tell me | report",
            "the rows in {file_name} | how many rows {file_name} has | the number of rows of {file_name}",
            equals("mode", "l"),
        ),
        case(
            "count | tell me | report",
            "the rows in {file_name} | how many rows {file_name} has | the number of rows of {file_name}",
            absent("mode"),
        ),
    ),
}

SUFFIXES: dict[str, tuple[Suffix, ...]] = {
    "du": (
        suffix(equals("human_readable", True), "in human form | for human eyes | with human units"),
        suffix(equals("human_readable", False), "in plain bytes | as exact bytes | in bytes only"),
    ),
    "find": (
        suffix(given("path"), "below {path} | under {path} | inside {path}"),
        suffix(absent("path"), "below here | under here | inside here"),
    ),
    "ls": (
        suffix(equals("a", True), "with hidden ones | including hidden ones | also hidden ones"),
        suffix(equals("a", False), "without hidden ones | except hidden ones | but no hidden ones"),
    ),
}
