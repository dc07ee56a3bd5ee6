"""What endpoints say where they do not answer, as a table: of which cause it is, and which parameter it is about.

Endpoints have a word of their own for the same thing, in an object, a list, a text or a page, with 400, 403, 413, 422,
500, and with 200. ``ROWS`` has the kinds of words; who says which is in ``tests/agents/chat/test_rejections.py``. What
was sent and comes back in an error is removed first: a prompt that speaks of context windows must not decide what the
answer is taken for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal, NamedTuple

Cause = Literal["passing", "mistake", "length", "refused", "rejected"]
"""``passing``: a retry may succeed. ``mistake``: the key, the model's name or the account is refused. ``length``: the
messages do not fit the model's context. ``refused``: moderation refuses these messages. ``rejected``: anything else."""

BODY_SHOWN = 120
_LONGEST_SAID = 1000
_MOST_CHARACTERS = 4000
_LONGEST_READ = 8_000
_MOST_SAID = 50
_DEEPEST = 8
_ECHO = 40
"""Characters of a message by which its repetition is known (ours)."""


_SENT = r"(?<![a-z])(?:inputs?|prompts?|messages?|conversation|sequence|request|payload|query|history)(?![a-z])"
_MORE = (
    r"(?:too[ _](?:long|large|big)|too many (?:\w{1,9} )?(?:tokens|characters|bytes|words)|too many messages|"
    r"exceed\w{0,9}|more tokens than|more than [\d,]+ (?:token|character|byte)|beyond|"
    r"(?<!must be )(?<!should be )(?:longer|larger|greater|bigger) than|overflow\w{0,9}|n[o']?t fit|"
    r"(?:over|above|past|reach\w{0,9}|hits?) (?:the |its |your )?(?:\w{1,9} )?(?:limit|maximum))"
)
_POLICY = r"(?:polic(?:y|ies)|guidelines?|terms of (?:use|service)|usage (?:rules|terms)|content rules)"
_FILTER = (
    r"(?:content[ _-]?(?:filter|policy|management|moderation|safety)\w{0,9}|safety|guardrails?|moderation|"
    r"responsible ?ai|(?:usage|acceptable[ -]use) polic(?:y|ies)|prohibited|sensitive|harmful|unsafe)"
)

ROWS: dict[Cause, tuple[str, ...]] = {
    "refused": (
        # OpenRouter, OpenAI: "your prompt was flagged".
        r"\bflagged\b(?! false| 0)|\brequires moderation|\bmoderation[ _](?:block|reject)|\bfailed moderation",
        r"\b(?:finish|stop)_?reason\W+(?:safety|content_filter|refusal|guardrail)",
        # Azure, Moonshot (a type or a code), LiteLLM.
        r"\bcontent_?filter(?:ed)?\b|\bcontent[ _]?policy[ _]?violation|responsibleaipolicy|\binvalid_prompt\b",
        rf"\b(?:filtered|trigger\w{{1,9}}|intervened?)\b.{{0,60}}{_FILTER}|{_FILTER}.{{0,40}}interven",
        # Anthropic, Bedrock, Gemini: blocked by a filter, or with a reason.
        rf"\b(?:block|reject|refus|declin|deni|not (?:allow|permit))\w{{0,9}}\b.{{0,60}}{_FILTER}",
        rf"{_FILTER}.{{0,40}}\b(?:block|reject|refus)ed",
        r"\b(?:prompt|input|output|message|content|completion)s? (?:was|were|is|are|has been|have been) blocked",
        r"\b(?:prohibited_content|recitation|blocklist|spii|jailbreak)\b|\bblock_?reason\b(?! (?:null|none))",
        # xAI, Cohere, OpenAI: against the rules of use.
        rf"\bviolat\w{{1,9}}.{{0,60}}{_POLICY}|{_POLICY}[\W_]{{0,3}}violat|\bsafety_(?:check|block)",
        # DeepSeek, Qwen, Mistral, Zhipu.
        r"\bcontent exists risk|\bhigh[ -]risk\b|\bdata_?inspection_?failed|\binappropriate (?:content|input)",
        r"\b(?:sensitive|unsafe|harmful|illegal|offensive|prohibited|nsfw|toxic) (?:content|information|input|prompt)",
        r"\bsafety (?:system|filter|check|reason|polic|guideline)|敏感|违规|不安全",
    ),
    "length": (
        # OpenAI, vLLM, llama.cpp, LM Studio, MiniMax, Ollama: the context.
        rf"\bcontext\b.{{0,60}}(?:{_MORE}|too small|\bfull\b)|{_MORE}.{{0,60}}\bcontext\b|\bn_ctx\b.{{0,20}}too",
        r"\b(?:not|nt) enough.{0,40}\bcontext\b|[>≥]=? ?(?:the )?(?:models )?(?:n_ctx|context)\b",
        r"\bexceed_?context|\bcontext[ _-]?(?:length|window|size|limit)[ _-]?(?:is |of |=|exceed|limit|error|overflow)",
        # vLLM, xAI, Fireworks: the most that a prompt may have.
        r"\bmax(?:imum)?[ _](?:\w{1,9}[ _]){0,2}(?:context|prompt|input|sequence)[ _](?:length|size|limit|window)",
        r"\bmax(?:imum)?[ _]model[ _]len|\bat most [\d,]+ (?:input|prompt|context) tokens",
        # Anthropic, Bedrock, Gemini, SGLang, Mistral, Copilot: the messages.
        rf"{_SENT}.{{0,60}}{_MORE}",
        # Cohere, Kimi, NIM: tokens.
        r"\btoo many (?:input |prompt |total )?tokens\b|\bexceed\w{0,9} .{0,20}token limit|\btokens? limit exceed",
        r"\b(?:has|contains|needs|requires) (?:about |at least )?[\d,]+ tokens.{0,20}\b(?:but|while|model|limit)\b",
        rf"\btokens? in (?:the |your )?{_SENT}.{{0,20}}more than|\btotal (?:number of )?tokens\b.{{0,40}}exceed",
        # Groq: what to do.
        r"\b(?:reduc|short|decreas|trim|truncat)\w{0,9}.{0,40}\b(?:inputs?|prompts?|messages?|conversation|history|context)\b",
        # TGI: "`inputs` tokens + `max_new_tokens` must be <= 4096"; Qwen, Cerebras.
        r"\binputs?(?: tokens)? (?:\+|must have (?:less|fewer|at most)|must be (?:less|fewer|at most|<))",
        r"\brange of input length|\binput length should|\blength is \d+.{0,20}limit is \d",
        # vLLM, where the messages alone are longer; Zhipu, Baidu.
        r"tokens must be at least 1, got -\d|(?:上下文|输入|提示)\S{0,12}(?:超过|超出|过长)",
    ),
}
"""Kinds of words in one sentence of an error, in lower case and without quotation marks. Refusals are read first: they
often say more."""

_LIMITED = re.compile(
    r"rate.?limit|\bper (?:second|minute|hour|day|week|month)\b|\b[tr]p[mdh]\b|quota|billing|credit|\bbalance\b|"
    r"throttl|too many requests|subscription|\b(?:hourly|daily|weekly|monthly|today)\b|afford|payment|overload|"
    r"capacity|queue|concurren|please wait|try again later|deadline|time(?:d )?.?out|cancell?ed|"
    r"\bt(?:ook|aking) too long|execution time|\bseconds?\b"
)
"""A limit of the account or of the moment, not of the model: ``tokens per minute exceeded``."""
_OWN_TOKENS = re.compile(
    r"\bmax(?:imum)?[ _]?(?:completion|output|new|generated)?[ _]?tokens\b|\b(?:completion|output) tokens\b"
)
_BOUND = re.compile(
    r"\bbetween\b|\brange\b|(?:less|greater|more|fewer|higher|lower) than|\bat (?:most|least)\b|[<>≤≥]|"
    r"\bm(?:in|ax)imum\b|too (?:large|small|high|low|big|long)|\bup to\b|\bexceed|\bmust be (?:an?|one|in|positive)\b"
)
_OF_MESSAGES = re.compile(
    r"\b(?:inputs?|prompts?|messages?|conversation|sequence)\b|\byour request has|\btokens? in (?:the |your )?request|"
    r"\byou requested|\brequested \d|context length is|\bgot -\d"
)
"""Who speaks of the messages means more than the bound of a parameter."""
_PREFIX = re.compile(r"\b(?:invalid|bad)[ _](?:request|input)\b|\binput validation error\b")
_ACCOUNT = re.compile(
    r"\b(?:account|organi[sz]ation|access|api key|team|project|user|workspace)\b(?! id).{0,40}"
    r"\b(?:terminat|deactivat|suspend|disabl|banned|blocked|denied|revok|restrict|not (?:allowed|permitted|authorized))"
)
"""Who is refused, and not what was sent."""
_UNSUPPORTED = re.compile(
    r"\bun(?:known|supported|recogni[sz]ed|expected|available|permitted|implemented)|"
    r"(?:not|nt) (?:currently |yet )?(?:be |an? )?(?:support|allow|permit|recogni|valid|availab|accept|know|found|"
    r"implement|compatib|enabled|take)\w*|\bcannot (?:both )?(?:be )?(?:set|specif|use|find|modif|chang|combin)\w*|"
    r"\bno longer\b|deprecated|\bextra(?:neous)?[ _](?:input|field|key|propert|param|forbidden)|\bforbidden\b|"
    r"\binstead\b|\binvalid (?:param|argument|field|key|name|propert|request argument)|\badditional propert|"
    r"\bonly (?:the default|be set|supports?|accepts?|allows?|[\w=. ]{1,20} is (?:allowed|supported|accepted))\b|"
    r"\bno (?:such|endpoints found)|\bremove\b|\bdeserialize\b"
)
_FORMAT = re.compile(
    r"response_?(?:format|schema|mime)|json_?(?:schema|object|mode)|json (?:schema|mode)|structured[ _-]?output|guided|"
    r"grammar|schema|constrained|(?:requested|these|some) param"
)
_SCHEMAS = re.compile(r"schema|grammar|function_?declaration|function_parameters|\btools?(?:\.|\[|config)")
_ECHOED = re.compile(
    "inputs?|flagged_input|failed_generation|messages|prompt|ctx|url|request|content|text|parts|tool_calls|"
    "reasoning(_content)?"
)
"""Keys under which an endpoint repeats what was sent, and under which a model's words are."""
_TOLD = ("message", "msg", "error", "detail", "raw", "title", "error_message", "status_msg", "reason", "description")
"""Keys of a sentence, rather than of a value that only its key explains."""
_NAMING = ("param", "parameter", "field", "property", "loc", "path")


class Rejection(NamedTuple):
    """Why a request was not answered: in the endpoint's words, and of which cause.

    ``parameters``: those of the request that it may succeed without, or under another name.
    """

    cause: Cause
    text: str
    parameters: frozenset[str] = frozenset()


def read_rejection(status: int, body: str, sent: Mapping[str, Any]) -> Rejection:
    """Read the response to the request ``sent``, which has another status than success or holds no completion."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    if status < 400:
        if not isinstance(content, dict | list):  # it may be a part of a reply
            return Rejection("passing", "")
        status = _status_in(content) or status
    told = (
        list(_leaves(content, "")) if isinstance(content, dict | list) else [("message", re.sub(r"<[^>]*>", " ", body))]
    )
    text = "; ".join(dict.fromkeys(" ".join(said.split()) for key, said in told[:_MOST_SAID] if key in _TOLD and said))
    if content is None or not text:
        text = f"the response begins with {body[:BODY_SHOWN]!r}" if body else ""
    long = {one[:_LONGEST_READ] for one in _texts(sent.get("messages")) if len(one) > _ECHO}
    echoes = [form for one in long for form in {one, json.dumps(one)[1:-1], repr(one)[1:-1]}]
    lines: list[str] = []
    for line in (line for key, said in told[:_MOST_SAID] for line in _lines(key, said, echoes)):
        if sum(map(len, lines)) < _MOST_CHARACTERS:
            lines.append(line)
    named = {said.rpartition(".")[2] for key, said in told if key in _NAMING}
    cause = _cause(status, lines)
    if cause not in ("rejected", "mistake", "passing") or status in (401, 402, 403, 408, 409, 429):
        return Rejection(cause, text)
    parameters = frozenset(_unsupported(lines, named, sent))
    if not parameters and cause == "rejected" and status in (400, 422) and "response_format" in sent:
        parameters = frozenset({"response_format"})  # unexplained, and the likeliest: what comes without it shows
    return Rejection("rejected" if parameters else cause, text, parameters)


def _cause(status: int, lines: Collection[str]) -> Cause:
    limited = any(map(_LIMITED.search, lines))
    if status in (401, 402):
        return "mistake"
    if status in (408, 409, 429):
        return "passing"
    if status == 498 or (not any(map(_ACCOUNT.search, lines)) and _says("refused", lines)):
        return "refused"  # 498: Cohere's
    if status not in (403, 404) and not limited and (status == 413 or _says("length", lines)):
        return "length"
    if status in (403, 404):
        return "mistake"
    return "passing" if status >= 500 or status < 400 or limited else "rejected"


def _says(cause: Cause, lines: Collection[str]) -> bool:
    """Return whether a row of the cause holds for a sentence, which a schema or a parameter's bound is not about."""
    if cause == "length":
        lines = [_PREFIX.sub("", line) for line in lines if "schema" not in line]
        lines = [line for line in lines if not _is_own_bound(line)]
    return any(re.search(row, line) for line in lines for row in ROWS[cause])


def _is_own_bound(line: str) -> bool:
    return bool(_OWN_TOKENS.search(line) and _BOUND.search(line) and not _OF_MESSAGES.search(line))


def _unsupported(lines: Collection[str], named: Collection[str], sent: Mapping[str, Any]) -> Iterator[str]:
    """Yield the parameters of the request that an endpoint says it does not take; a value out of bounds is another."""
    refused = any(map(_UNSUPPORTED.search, lines)) and not any(map(_BOUND.search, lines))
    for name in sent:
        if name == "response_format":
            found = any(map(_FORMAT.search, lines))
        elif name == "tools":
            found = any(map(_SCHEMAS.search, lines))
        elif name in ("model", "messages", "stream"):
            found = False
        else:
            near = _near(name)
            found = name in named and refused
            found = found or any(near.search(line) and not _BOUND.search(line) for line in lines)
        if found:
            yield name


def _near(name: str) -> re.Pattern[str]:
    """Match the name of a parameter in a sentence that says it is not taken."""
    word, refused = rf"(?<!\w){name.replace('_', '_?')}(?!\w)", f"(?:{_UNSUPPORTED.pattern})"
    return re.compile(rf"{word}[^;]{{0,80}}{refused}|{refused}[^;]{{0,60}}{word}")


def _lines(key: str, said: str, echoes: Collection[str]) -> Iterator[str]:
    """Yield the sentences of a value of an error, in lower case, without quotation marks and what was sent."""
    said = said[:_LONGEST_READ]
    for echo in echoes:
        if (begins := echo[:_ECHO]) in said:
            said = said.replace(echo, " ").partition(begins)[0]  # the whole of it, or a beginning
    said = said[:_LONGEST_SAID]
    said = said if key in _TOLD or key in ("code", "type", *_NAMING) else f"{key} {said}"
    plain = re.sub(r"[`'\"\u201c\u201d\u2018\u2019]", "", said.lower())
    for line in re.split(r"\n|(?<=[a-z)\]])\. (?=[a-z])", plain):
        yield " ".join(line.split())


def _leaves(value: object, key: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the values of an error with their keys, without those that repeat the request; JSON in a text is read."""
    if depth > _DEEPEST:
        return
    if isinstance(value, dict):
        if isinstance(place := value.get("loc"), list):  # of pydantic: [body, max_completion_tokens]
            where = ".".join(map(str, place))
            yield "loc", where
            yield "msg", f"{where}: {value.get('msg')}"
        for name, one in value.items():
            if not _ECHOED.fullmatch(str(name).lower()) and name != "loc":
                yield from _leaves(one, str(name), depth + 1)
    elif isinstance(value, list):
        for one in value[:_MOST_SAID]:
            yield from _leaves(one, key, depth + 1)
    elif isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            yield from _leaves(json.loads(value), key, depth + 1)
        except (ValueError, RecursionError):
            yield key, value
    elif value is not None:
        yield key, str(value)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


def _status_in(content: object) -> int | None:
    """Return the status that an error within a response of success has, as OpenRouter writes them."""
    one = content[0] if isinstance(content, list) and content else content
    error = one.get("error", one) if isinstance(one, dict) else None
    for key in ("code", "status", "status_code", "http_status"):
        found = str(error.get(key)) if isinstance(error, dict) else ""
        if found.isdecimal() and 400 <= int(found[:4]) <= 599 and len(found) == 3:
            return int(found)
    return None
