"""What endpoints say where they do not answer: a table of their wordings, and what each is taken for."""

# ruff: noqa: E501, RUF001 - wordings as they are

from __future__ import annotations

import json
from typing import Any

import pytest

from agents.chat.rejections import ROWS, Cause, read_rejection

PROMPT = "Here is a request whose context window is full: the prompt is too long, and it was flagged by moderation."
ROLE: dict[str, Any] = {
    "model": "m",
    "stream": False,
    "messages": [{"role": "user", "content": PROMPT}],
    "temperature": 0.5,
    "max_completion_tokens": 4096,
    "response_format": {"type": "json_schema"},
}
SCORED: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": PROMPT}],
    "temperature": 0.0,
    "max_completion_tokens": 64,
    "tools": [{"type": "function", "function": {"name": "ls", "parameters": {}}}],
}
OLD: dict[str, Any] = {"model": "m", "messages": [], "max_tokens": 64}


def error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


LENGTH: dict[str, tuple[int, Any]] = {
    "OpenAI": (
        400,
        error("This model's maximum context length is 8192 tokens. However, your messages resulted in 8227 tokens.",
              type="invalid_request_error", param="messages", code="context_length_exceeded"),
    ),
    "OpenAI, responses": (400, error("Your input exceeds the context window of this model. Please adjust your input.")),
    "OpenAI, a message": (400, error("Invalid 'messages[0].content': string too long. Expected a maximum length 1048576.")),
    "vLLM": (400, {"object": "error", "message": "'max_tokens' or 'max_completion_tokens' is too large: 4096. This "
                   "model's maximum context length is 4096 tokens and your request has 12 input tokens (4096 > 4084)."}),
    "vLLM, decoder": (400, {"object": "error", "message": "The decoder prompt (length 10127) is longer than the maximum "
                            "model length of 8192. Make sure that `max_model_len` is no smaller."}),
    "llama.cpp": (400, error("request (4390 tokens) exceeds the available context size (4096 tokens), try increasing it",
                             type="exceed_context_size_error", n_prompt_tokens=4390, n_ctx=4096)),
    "llama.cpp, 500": (500, error("Context size has been exceeded.", code=500, type="server_error")),
    "llama.cpp, old": (500, error("Input prompt is too big compared to KV size. Please try increasing KV size.")),
    "llama-cpp-python": (500, error("Requested tokens (2285) exceed context window of 2048", type="internal_server_error")),
    "LM Studio": (400, {"error": "The number of tokens to keep from the initial prompt is greater than the context "
                        "length (n_keep: 13055>= n_ctx: 4096). Try to load the model with a larger context length."}),
    "LM Studio, 200": (200, {"error": "Trying to keep the first 14538 tokens when context the overflows. However, the "
                             "model is loaded with context length of only 2048 tokens, which is not enough."}),
    "Ollama": (400, error("prompt too long; exceeded max context length by 12 tokens")),
    "SGLang": (400, {"object": "error", "message": "The input (61709 tokens) is longer than the model's context length "
                     "(40960 tokens).", "type": "BadRequestError", "param": None, "code": 400}),
    "SGLang, allowed": (400, {"message": "Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens)."}),
    "TGI": (422, {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 "
                  "`inputs` tokens and 512 `max_new_tokens`", "error_type": "validation"}),
    "TGI, inputs": (422, {"error": "Input validation error: `inputs` must have less than 4095 tokens. Given: 5000"}),
    "Gemini": (400, [error("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
                           code=400, status="INVALID_ARGUMENT")]),
    "Gemini, bytes": (400, [error("Request payload size exceeds the limit: 20971520 bytes.", status="INVALID_ARGUMENT")]),
    "Bedrock": (400, {"message": "Input is too long for requested model."}),
    "Mistral": (400, {"object": "error", "message": "Prompt contains 40000 tokens and 0 draft tokens, too large for model "
                      "with 32768 maximum context length", "type": "invalid_request_prompt", "code": "3051"}),
    "OpenRouter": (400, error("This endpoint's maximum context length is 262000 tokens. However, you requested about "
                              "263390 tokens (658 of text input, 732 of tool input, 262000 in the output).", code=400)),
    "OpenRouter, 200": (200, error("Provider returned error", code=400, metadata={"raw": json.dumps(
        {"error": {"message": "This model's maximum context length is 16000 tokens."}})})),
    "OpenRouter, 502": (502, error("ConnectionError: {\"message\": \"This model's maximum context length is 16000\"}")),
    "DeepSeek": (400, error("This model's maximum context length is 65536 tokens. However, you requested 70000 tokens "
                            "(69000 in the messages, 1000 in the completion).", type="invalid_request_error")),
    "Anthropic": (400, {"type": "error", "error": {"message": "prompt is too long: 213462 tokens > 200000 maximum"}}),
    "Anthropic, sum": (400, error("input length and `max_tokens` exceed context limit: 174167 + 64000 > 200000, decrease "
                                  "input length or `max_tokens` and try again")),
    "Anthropic, 413": (413, error("Request exceeds the maximum size", type="request_too_large")),
    "nginx": (413, "<html><head><title>413 Request Entity Too Large</title></head></html>"),
    "Groq": (400, error("Please reduce the length of the messages or completion.", param="messages")),
    "Cerebras": (400, error("Current length is 9000 while limit is 8192")),
    "Together": (422, error("The input (9000 tokens) is longer than the model's context length (8192 tokens).")),
    "Fireworks": (400, error("The prompt is too long: 200000, model maximum context length: 131071")),
    "xAI": (400, {"code": "Client specified an invalid argument",
                  "error": "This model's maximum prompt length is 131072 but the request contains 537812 tokens."}),
    "Cohere": (400, {"message": "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292. "
                     "Try using a shorter prompt."}),
    "Cohere, old": (400, {"message": "too many tokens"}),
    "Qwen": (400, error("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]")),
    "Kimi": (400, error("Invalid request: Your request exceeded model token limit: 262144 (requested: 300000)")),
    "MiniMax": (400, error("invalid params, context window exceeds limit (2013)")),
    "Copilot": (400, error("prompt token count of 130000 exceeds the limit of 128000", code="model_max_prompt_tokens_exceeded")),
    "NIM": (400, {"detail": "tokens in request more than max tokens allowed"}),
    "FastAPI": (422, {"detail": [{"loc": ["body", "messages"], "msg": "the conversation has more tokens than the context",
                                  "input": PROMPT}]}),
    "plain": (400, "the prompt exceeds the model's limit"),
    "n_ctx": (500, error("slot unavailable, n_ctx too small")),
    "a total": (400, error("total tokens 9001 exceeds 8192")),
    "a code": (400, error("Bad request", code="context_length_exceeded")),
    "full": (400, error("The context is full")),
    "room": (400, error("Not enough room in the context: 5000 tokens needed, 4096 available")),
    "at most": (400, error("This model supports at most 32768 input tokens")),
    "has": (400, error("the request has 40000 tokens but the model supports 32768")),
    "vLLM, negative": (400, error("max_tokens must be at least 1, got -37.")),
    "Zhipu": (400, error("输入长度超过模型最大长度")),
    "a word": (400, error("broken", code="input_too_long")),
    "a type": (400, error("Bad request", type="exceed_context_size_error")),
    "a sum": (400, error("maximum model len is 4096")),
}  # fmt: skip

REFUSED: dict[str, tuple[int, Any]] = {
    "OpenRouter": (403, error("The input was flagged by moderation", code=403, metadata={"reasons": ["violence"]})),
    "OpenRouter, model": (403, error("openai/gpt-4 requires moderation on OpenRouter. Your input was flagged for \"sexual\".",
                                     metadata={"flagged_input": PROMPT})),
    "OpenRouter, 200": (200, error("Your chosen model requires moderation and your input was flagged", code=403)),
    "OpenAI": (400, error("Invalid prompt: your prompt was flagged as potentially violating our usage policy. Please try "
                          "again with a different prompt", code="invalid_prompt")),
    "Azure": (400, error("The response was filtered due to the prompt triggering Azure OpenAI's content management policy. "
                         "Please modify your prompt and retry.", param="prompt", code="content_filter",
                         innererror={"code": "ResponsibleAIPolicyViolation",
                                     "content_filter_result": {"hate": {"filtered": True, "severity": "high"}}})),
    "Gemini": (200, {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 9}}),
    "Gemini, other": (200, {"choices": None, "promptFeedback": {"blockReason": "OTHER"}}),
    "Gemini, list": (400, [error("The request was blocked for safety reasons.", status="INVALID_ARGUMENT")]),
    "Bedrock": (400, {"message": "The input was blocked: a guardrail intervened."}),
    "Bedrock, output": (400, {"message": "Sorry, the model cannot answer this question: guardrail_intervened"}),
    "Anthropic": (400, error("Output blocked by content filtering policy", type="invalid_request_error")),
    "xAI": (403, {"code": "The caller does not have permission to execute the specified operation",
                  "error": "Content violates usage guidelines. Team: t, API key ID: k, Model: m, Failed check: SAFETY_CHECK"}),
    "Cohere": (498, {"message": "blocked"}),
    "DeepSeek": (400, error("Content Exists Risk", type="invalid_request_error")),
    "DeepSeek, detail": (400, {"detail": "Content Exists Risk"}),
    "Moonshot": (400, error("The request was rejected because it was considered high risk", type="content_filter")),
    "Qwen": (400, error("Input data may contain inappropriate content.", code="data_inspection_failed")),
    "Zhipu": (400, error("系统检测到输入或生成内容可能包含不安全或敏感内容，请您避免输入易产生敏感内容的提示语。", code="1301")),
    "LiteLLM": (400, error("litellm.ContentPolicyViolationError: rejected", code="content_policy_violation")),
    "OpenAI, images": (400, error("Your request was rejected as a result of our safety system.")),
    "Mistral": (400, {"message": "The prompt contains unsafe content", "code": 400}),
    "a proxy": (403, "<h1>Forbidden</h1> Your prompt was blocked."),
    "Fireworks": (400, error("moderation_blocked")),
    "a guardrail": (400, error("guardrail toxic-v2 blocked it")),
    "a proxy of Gemini": (400, error("no reply, finish_reason: SAFETY")),
    "a type alone": (400, error("Try again with other words", type="content_filter")),
    "rules of use": (400, error("This request violates the usage guidelines.")),
}  # fmt: skip

NEITHER: dict[str, tuple[int, Any, str]] = {
    "Groq, minute": (413, error("Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 7000",
                                type="tokens", code="rate_limit_exceeded"), "passing"),
    "tokens a minute": (400, error("Rate limit reached: tokens per minute exceeded, your prompt is too long"), "passing"),
    "Bedrock, throttled": (429, {"message": "Too many tokens, please wait before trying again."}, "passing"),
    "OpenAI, quota": (429, error("You exceeded your current quota, please check your plan and billing details."), "passing"),
    "a month": (400, error("You have exceeded your monthly token limit"), "passing"),
    "OpenRouter, credits": (402, error("Prompt tokens limit exceeded: 15000 > 9000. To increase, add credits"), "mistake"),
    "DeepSeek, bound": (400, error("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]"), "rejected"),
    "OpenAI, bound": (400, error("max_tokens is too large: 32000. This model supports at most 16384 completion tokens, "
                                 "whereas you provided 32000.", param="max_tokens"), "rejected"),
    "Groq, bound": (400, error("`max_completion_tokens` must be less than or equal to `8192`, the maximum value for "
                               "`max_completion_tokens` is less than the `context_window` for this model",
                               param="max_completion_tokens"), "rejected"),
    "gpustack, bound": (400, error('Illegal param: "max_completion_tokens" or "max_tokens" must be less than or equal to the '
                                   "model's context length."), "rejected"),
    "Anthropic, bound": (400, error("max_tokens: 64000 > 32000, which is the maximum allowed number of output tokens"),
                         "rejected"),
    "Bedrock, bound": (400, {"message": "The maximum tokens you requested exceeds the model limit of 8192. Try again."},
                       "rejected"),
    "too hot": (400, error("temperature must be between 0 and 2", param="temperature"), "rejected"),
    "the key": (401, error("Incorrect API key provided: context length"), "mistake"),
    "no right": (403, error("You do not have access to this model", code="permission_denied"), "mistake"),
    "a country": (403, error("Country, region, or territory not supported"), "mistake"),
    "an account": (403, error("Your access was terminated due to violation of our policies, please check your email"),
                   "mistake"),
    "an organisation": (400, error("Your organization has been disabled for violating our usage policies."), "rejected"),
    "Cloudflare": (403, "<html><title>Attention Required!</title>Sorry, you have been blocked</html>", "mistake"),
    "CloudFront": (403, "<html>The request could not be satisfied. Request blocked.</html>", "mistake"),
    "data policy": (404, error("No endpoints found matching your data policy"), "mistake"),
    "no tools": (404, error("No endpoints found that support tool use."), "mistake"),
    "no model": (404, error("The model `m` does not exist"), "mistake"),
    "vLLM, choice": (400, error('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser'), "rejected"),
    "tools, many": (400, error("Invalid 'tools': array too long. Expected an array with maximum length 128"), "rejected"),
    "a user": (400, error("Invalid 'user': string too long. Expected a string with maximum length 64"), "rejected"),
    "a filter off": (400, error("broken", content_filter_result={"hate": {"filtered": False}}, flagged=False), "rejected"),
    "an echo": (422, {"detail": [{"type": "value_error", "loc": ["body"], "msg": "broken", "input": {"messages": PROMPT}}]},
                "rejected"),
    "an echo, within": (400, error(f"cannot read {PROMPT!r}"), "rejected"),
    "an echo, cut off": (400, error(f"cannot read {PROMPT[:90]!r}..."), "rejected"),
    "an echo, as JSON": (400, error("cannot read", raw=json.dumps({"messages": [{"content": PROMPT}]})), "rejected"),
    "a gateway": (502, "<html><title>502 Bad Gateway</title></html>", "passing"),
    "memory": (500, error("CUDA out of memory"), "passing"),
    "overloaded": (503, error("The server is overloaded: too many tokens in its queue"), "passing"),
    "overloaded, 200": (200, error("overloaded", code=503), "passing"),
    "Go, a deadline": (500, error("context deadline exceeded"), "passing"),
    "Go, a client": (500, error("context canceled: request exceeded its time"), "passing"),
    "too slow": (400, error("The request took too long to process"), "passing"),
    "system messages": (400, error("messages: more than one system message is not supported"), "rejected"),
    "an empty prompt": (400, error("prompt length must be greater than 0"), "rejected"),
    "system messages, many": (400, error("messages: too many system messages"), "rejected"),
    "files": (502, error("request failed: too many open files"), "passing"),
    "moderation is down": (503, error("content moderation backend unavailable"), "passing"),
    "too many tools": (400, error("Invalid request: tools exceeds the maximum of 128"), "rejected"),
    "a network's rule": (403, error("Access denied by usage policy of the network"), "mistake"),
    "a reply, cut off": (200, '{"choices": [{"message": {"content": "The prompt is too long, and was flagged.', "passing"),
    "a reply, odd": (200, {"choices": [{"message": {"role": "system", "content": "The prompt is too long"}}]}, "passing"),
    "no words": (400, "", "rejected"),
    "deep": (400, "[" * 100_000, "rejected"),
    "a number": (400, "7", "rejected"),
}  # fmt: skip

CHANGED: dict[str, tuple[int, Any, dict[str, Any], set[str]]] = {
    "Mistral": (422, {"object": "error", "message": {"detail": [{
        "type": "extra_forbidden", "loc": ["body", "max_completion_tokens"], "msg": "Extra inputs are not permitted",
        "input": 32000}]}}, SCORED, {"max_completion_tokens"}),
    "Mistral, text": (422, {"message": '{"detail":[{"type":"extra_forbidden","loc":["body","max_completion_tokens"],'
                            '"msg":"Extra inputs are not permitted","input":0}]}'}, ROLE, {"max_completion_tokens"}),
    "FastAPI": (422, {"detail": [
        {"type": "extra_forbidden", "loc": ["body", "temperature"], "msg": "Extra inputs are not permitted"},
        {"type": "extra_forbidden", "loc": ["body", "max_completion_tokens"], "msg": "Extra inputs are not permitted"}]},
        SCORED, {"temperature", "max_completion_tokens"}),
    "vLLM": (400, {"object": "error", "message": "[{'type': 'extra_forbidden', 'loc': ('body', 'max_completion_tokens'), "
                   "'msg': 'Extra inputs are not permitted', 'input': 8192}]"}, SCORED, {"max_completion_tokens"}),
    "OpenAI": (400, error("Unsupported parameter: 'max_tokens' is not supported with this model. Use "
                          "'max_completion_tokens' instead.", param="max_tokens"), OLD, {"max_tokens"}),
    "OpenAI, value": (400, error("Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) "
                                 "value is supported.", param="temperature"), SCORED, {"temperature"}),
    "OpenAI, old": (400, error("Unrecognized request arguments supplied: max_completion_tokens, temperature"), SCORED,
                    {"max_completion_tokens", "temperature"}),
    "named apart": (400, error("Unsupported parameter", param="temperature"), SCORED, {"temperature"}),
    "Gemini": (400, [error('Invalid JSON payload received. Unknown name "max_completion_tokens": Cannot find field.')],
               SCORED, {"max_completion_tokens"}),
    "Bedrock": (400, {"message": "Malformed input request: #: extraneous key [max_completion_tokens] is not permitted"},
                SCORED, {"max_completion_tokens"}),
    "Cohere": (400, {"message": "unknown field: parameter 'max_completion_tokens' is not a valid field"}, SCORED,
               {"max_completion_tokens"}),
    "xAI": (400, {"code": "invalid-argument", "error": "Model m does not support parameter maxCompletionTokens."}, SCORED,
            {"max_completion_tokens"}),
    "Groq": (400, error("property 'temperature' is unsupported"), SCORED, {"temperature"}),
    "Anthropic": (400, error("temperature is deprecated for this model."), SCORED, {"temperature"}),
    "Python": (500, {"detail": "create() got an unexpected keyword argument 'max_completion_tokens'"}, SCORED,
               {"max_completion_tokens"}),
    "a list of others": (400, error("Unknown parameter: max_completion_tokens. Supported: temperature, tools"), SCORED,
                         {"max_completion_tokens"}),
    "format, Azure": (400, error("Invalid parameter: 'response_format' of type 'json_schema' is not supported"), ROLE,
                      {"response_format"}),
    "format, DeepSeek": (400, error("This response_format type is unavailable now"), ROLE, {"response_format"}),
    "format, llama.cpp": (400, error("Failed to initialize samplers: failed to parse grammar"), ROLE, {"response_format"}),
    "format, llama.cpp 500": (500, error("JSON schema conversion failed: Unrecognized schema"), ROLE, {"response_format"}),
    "format, vLLM": (400, {"message": "The provided JSON schema contains features not supported by xgrammar."}, ROLE,
                     {"response_format"}),
    "format, vLLM 500": (500, {"message": 'Grammar error: Unimplemented keys: ["propertyNames"]'}, ROLE, {"response_format"}),
    "format, TGI": (422, {"error": "Input validation error: grammar is not valid"}, ROLE, {"response_format"}),
    "format, Gemini": (400, [error("The specified schema produces a constraint that has too many states for serving.")], ROLE,
                       {"response_format"}),
    "format, OpenRouter": (404, error("No endpoints found that can handle the requested parameters."), ROLE,
                           {"response_format"}),
    "format, unexplained": (400, [error("Request contains an invalid argument.", status="INVALID_ARGUMENT")], ROLE,
                            {"response_format"}),
    "tools, OpenAI": (400, error("Invalid schema for function 'x': In context=('properties', 'a'), array schema missing items.",
                                 param="tools[0].function.parameters", code="invalid_function_parameters"), SCORED, {"tools"}),
    "tools, llama.cpp": (400, error("Failed to initialize samplers: failed to parse grammar"), SCORED, {"tools"}),
    "tools, Gemini": (400, [error("Invalid JSON payload received. Unknown name \"const\" at 'tools[0].function_declarations"
                                  "[5].parameters': Cannot find field.")], SCORED, {"tools"}),
    "tools, Anthropic": (400, error("tools.0.custom.input_schema: JSON schema is invalid."), SCORED, {"tools"}),
    "tools, Bedrock": (400, {"message": "The value at toolConfig.tools.0.toolSpec.inputSchema.json.type is not valid"}, SCORED,
                       {"tools"}),
}  # fmt: skip


def text_of(body: Any) -> str:
    return body if isinstance(body, str) else json.dumps(body)


@pytest.mark.parametrize("sent", [ROLE, SCORED], ids=["role", "scored"])
@pytest.mark.parametrize("who", LENGTH)
def test_a_full_context_is_the_models_limit(who: str, sent: dict[str, Any]) -> None:
    status, body = LENGTH[who]
    found = read_rejection(status, text_of(body), sent)
    assert (found.cause, found.parameters) == ("length", frozenset()), found


@pytest.mark.parametrize("sent", [ROLE, SCORED], ids=["role", "scored"])
@pytest.mark.parametrize("who", REFUSED)
def test_moderation_refuses_what_was_sent(who: str, sent: dict[str, Any]) -> None:
    status, body = REFUSED[who]
    found = read_rejection(status, text_of(body), sent)
    assert (found.cause, found.parameters) == ("refused", frozenset()), found


@pytest.mark.parametrize("who", NEITHER)
def test_limits_of_the_account_bounds_of_a_parameter_and_what_was_sent_are_neither(who: str) -> None:
    status, body, cause = NEITHER[who]
    found = read_rejection(status, text_of(body), SCORED)
    assert (found.cause, found.parameters) == (cause, frozenset()), found


@pytest.mark.parametrize("who", CHANGED)
def test_a_parameter_that_is_not_taken_is_named(who: str) -> None:
    status, body, sent, names = CHANGED[who]
    assert read_rejection(status, text_of(body), sent).parameters == names


@pytest.mark.parametrize(("table", "cause"), [(LENGTH, "length"), (REFUSED, "refused")], ids=["length", "refused"])
def test_every_row_is_needed(monkeypatch: pytest.MonkeyPatch, table: dict[str, tuple[int, Any]], cause: Cause) -> None:
    """Some wording of the table is read by that row alone."""
    for row in ROWS[cause]:
        monkeypatch.setitem(ROWS, cause, tuple(one for one in ROWS[cause] if one != row))
        read = {who: read_rejection(status, text_of(body), SCORED).cause for who, (status, body) in table.items()}
        monkeypatch.undo()
        assert set(read.values()) != {cause}, row
