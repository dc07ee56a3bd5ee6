"""Define the wordings of the calls of MathAPI.

No wording holds the name of its own function, digits or quotes, which mark values.
"""

from __future__ import annotations

from environments.bfcl.templated.shapes import case, suffix

CASES = (
    case(
        "absolute_value",
        "work out | compute | give me",
        "the size of {number} without its sign | how far {number} is from nought | {number} with no minus",
    ),
    case(
        "add", "work out | compute | give me", "{a} plus {b} | what {a} with {b} makes together | the total of {a}, {b}"
    ),
    case(
        "divide",
        "work out | compute | give me",
        "{a} over {b} | how many times {b} goes into {a} | the quotient of {a} by {b}",
    ),
    case(
        "imperial_si_conversion",
        "convert | turn | express",
        "{value} from {unit_in} into {unit_out} across imperial or metric | "
        "the imperial or metric {value} of {unit_in} as {unit_out} | "
        "{value} in {unit_in} as {unit_out} from imperial to metric or back",
    ),
    case(
        "logarithm",
        "work out | compute | give me",
        "the log of {value} to base {base} with {precision} digits | "
        "with {precision} digits the log at base {base} of {value} | "
        "to which exponent {base} gives {value}, {precision} digits",
    ),
    case(
        "max_value",
        "pick | find | give me",
        "the largest of {numbers} | the highest one among {numbers} | which of {numbers} is greatest",
    ),
    case(
        "mean",
        "work out | compute | give me",
        "the average of {numbers} | what {numbers} come to on average | the middle that {numbers} balance at",
    ),
    case(
        "min_value",
        "pick | find | give me",
        "the smallest of {numbers} | the lowest one among {numbers} | which of {numbers} is least",
    ),
    case(
        "multiply",
        "work out | compute | give me",
        "{a} times {b} | the product of {a} with {b} | what {a} taken {b} times makes",
    ),
    case(
        "percentage",
        "work out | compute | give me",
        "what share {part} is of {whole} | how much of {whole} in percent {part} makes | "
        "the percent that {part} has in {whole}",
    ),
    case(
        "power",
        "work out | compute | give me",
        "{base} to the {exponent} | {base} raised by exponent {exponent} | "
        "{base} taken times itself with exponent {exponent}",
    ),
    case(
        "round_number",
        "cut | shorten | bring",
        "{number} to its nearest round figure | {number} down to fewer digits | "
        "the long figure {number} to a round one",
    ),
    case(
        "si_unit_conversion",
        "convert | turn | express",
        "{value} from {unit_in} into {unit_out} within metric units | "
        "the metric {value} of {unit_in} as {unit_out} | {value} in metric {unit_in} as {unit_out}",
    ),
    case(
        "square_root",
        "work out | compute | give me",
        "the root of {number} with {precision} digits | "
        "with {precision} digits what times itself makes {number} | "
        "which figure squared is {number}, {precision} digits",
    ),
    case(
        "standard_deviation",
        "work out | compute | give me",
        "how far {numbers} spread | the spread of {numbers} | how widely {numbers} scatter",
    ),
    case(
        "subtract",
        "work out | compute | give me",
        "{a} minus {b} | the difference from {a} to {b} | what is left of {a} after {b}",
    ),
    case(
        "sum_values",
        "work out | compute | give me",
        "the grand total of {numbers} | what all of {numbers} come to | all of {numbers} in one total",
    ),
)

SUFFIXES = (
    suffix(
        "round_number",
        "with {decimal_places} decimals | at {decimal_places} decimals | keeping {decimal_places} decimals",
    ),
)
