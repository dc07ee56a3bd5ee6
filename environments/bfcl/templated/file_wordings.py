"""Define the wordings of the calls of GorillaFileSystem: openings and objects for each case, and suffixes.

No word is the name of a function or parameter of the templated classes; no digits and no quotes, which mark values.
"""

from __future__ import annotations

from environments.bfcl.templated.shapes import case, suffix

CASES = (
    case(
        "cat",
        "show | read out | print",
        "everything in the file {file_name} | the whole text of {file_name} | all that {file_name} says",
    ),
    case(
        "cd",
        "go | change | switch",
        "into the directory {folder} | over to the directory {folder} | to {folder} as working directory",
    ),
    case(
        "cp",
        "copy | duplicate | clone",
        "{source} to {destination} | the item {source} into {destination} | {source} over to {destination}",
    ),
    case(
        "diff",
        "compare | contrast | check",
        "{file_name1} against {file_name2} | how {file_name1} differs from {file_name2} | "
        "the differences of {file_name1} and {file_name2}",
    ),
    case("du", "tell me | estimate | report", "the disk usage | how much disk is used | the used disk space"),
    case(
        "echo",
        "write | put | store",
        "{content} into the file {file_name} | the text {content} in {file_name} | {content} as text of {file_name}",
    ),
    case(
        "echo",
        "output | say | repeat",
        "{content} on the screen | the text {content} in the terminal | {content} as text on screen",
    ),
    case(
        "find",
        "locate | search for | track down",
        "items called {name} | whatever is called {name} | all entries called {name}",
    ),
    case("find", "locate | search for | track down", "all items | whatever there is | every one of the entries"),
    case(
        "grep",
        "pick out | filter | extract",
        "rows of {file_name} that contain {pattern} | the rows in {file_name} with {pattern} | "
        "from {file_name} all rows with {pattern}",
    ),
    case("ls", "list | show | give me", "the items here | what is in this directory | the entries of this directory"),
    case(
        "mkdir",
        "create | make | set up",
        "the directory {dir_name} | one new directory called {dir_name} | the new directory {dir_name} here",
    ),
    case(
        "mv",
        "move | relocate | transfer",
        "{source} to {destination} | the item {source} into {destination} | {source} over to {destination}",
    ),
    case(
        "pwd",
        "tell me | report | show",
        "the directory i am in | where i am right now | in which directory i am working",
    ),
    case("rm", "delete | remove | erase", "{file_name} | the item {file_name} | {file_name} from here"),
    case(
        "rmdir",
        "delete | remove | clear away",
        "the empty directory {dir_name} | {dir_name} as an empty directory | the now empty directory {dir_name}",
    ),
    case(
        "sort",
        "order | arrange | alphabetize",
        "the rows of {file_name} | all rows in {file_name} | {file_name} row by row",
    ),
    case(
        "tail",
        "show | print | give me",
        "the last {lines} rows of {file_name} | the final {lines} rows of {file_name} | "
        "{lines} rows from the end of {file_name}",
    ),
    case(
        "tail",
        "show | print | give me",
        "the last rows of {file_name} | the final part of {file_name} | the end of {file_name}",
    ),
    case(
        "touch",
        "create | make | produce",
        "the empty file {file_name} | one new file called {file_name} | the new empty file {file_name} here",
    ),
    case(
        "wc",
        "count | tell me | report",
        "the words in {file_name} | how many words {file_name} has | the number of words of {file_name}",
        mode="w",
    ),
    case(
        "wc",
        "count | tell me | report",
        "the characters in {file_name} | how many characters {file_name} has | the number of characters of {file_name}",
        mode="c",
    ),
    case(
        "wc",
        "count | tell me | report",
        "the rows in {file_name} | how many rows {file_name} has | the number of rows of {file_name}",
        mode="l",
    ),
    case(
        "wc",
        "count | tell me | report",
        "the rows in {file_name} | how many rows {file_name} has | the number of rows of {file_name}",
    ),
)

SUFFIXES = (
    suffix("du", "in human form | for human eyes | with human units", human_readable=True),
    suffix("du", "in plain bytes | as exact bytes | in bytes only", human_readable=False),
    suffix("find", "below {path} | under {path} | inside {path}"),
    suffix("find", "below here | under here | inside here", path=None),
    suffix("ls", "with hidden ones | including hidden ones | also hidden ones", a=True),
    suffix("ls", "without hidden ones | except hidden ones | but no hidden ones", a=False),
)
