"""Define the wordings of the calls of TradingBot.

No wording holds the name of its own function, digits or quotes, which mark values.
"""

from __future__ import annotations

from environments.bfcl.templated.shapes import case, suffix

CASES = (
    case(
        "add_to_watchlist",
        "put | take | enter",
        "the stock {stock} on my watchlist | {stock} among the stocks i watch | {stock} on the list to watch",
    ),
    case(
        "cancel_order",
        "call off | take back | revoke",
        "the order {order_id} | order {order_id} at the broker | my trade order {order_id}",
    ),
    case(
        "filter_stocks_by_price",
        "pick out | keep | select",
        "of the stocks {stocks} those from {min_price} to {max_price} | "
        "which of {stocks} cost no less than {min_price}, no more than {max_price} | "
        "those among {stocks} that trade from {min_price} up to {max_price}",
    ),
    case(
        "fund_account",
        "pay | deposit | transfer",
        "{amount} into my trading account | {amount} to the broker | {amount} onto my balance for trading",
    ),
    case(
        "get_account_info",
        "show | report | check",
        "my trading account | the balance at the broker | what my trading account holds",
    ),
    case(
        "get_available_stocks",
        "name | give me | show",
        "the stocks of the sector {sector} | what one can buy in {sector} | every symbol that {sector} offers",
    ),
    case(
        "get_current_time",
        "tell me | look up | say",
        "what time it is | the time of day | how late it is at the exchange",
    ),
    case(
        "get_order_details",
        "show | pull up | look at",
        "what order {order_id} says | the particulars of order {order_id} | order {order_id} in full",
    ),
    case(
        "get_order_history",
        "show | go through | give me",
        "all orders so far | the past orders | every order i ever placed",
    ),
    case(
        "get_stock_info",
        "report | look up | tell me",
        "how the stock {symbol} stands | the quote of {symbol} | what {symbol} costs at the exchange",
    ),
    case(
        "get_symbol_by_name",
        "look up | find out | tell me",
        "the ticker of {name} | under which ticker {name} trades | the letters that {name} has at the exchange",
    ),
    case(
        "get_transaction_history",
        "show | go through | give me",
        "my payments at the broker | what went through the trading account | the transfers at the broker",
    ),
    case(
        "get_watchlist",
        "show | read out | give me",
        "the stocks that i watch | what is on my list to watch | my watched stocks",
    ),
    case(
        "notify_price_change",
        "warn me | alert me | let me know",
        "when one of {stocks} moves by {threshold} percent | "
        "about moves of more than {threshold} percent in {stocks} | "
        "if {stocks} jump or fall by {threshold} percent",
    ),
    case(
        "place_order",
        "submit | give | enter",
        "the order {order_type} for {amount} shares of {symbol} at {price} | "
        "to the broker {order_type} of {symbol}, {amount} shares at {price} | "
        "at {price} the trade {order_type} of {amount} times {symbol}",
    ),
    case(
        "remove_stock_from_watchlist",
        "take | drop | strike",
        "the stock {symbol} off my watchlist | {symbol} from the stocks i watch | {symbol} off the list to watch",
    ),
    case(
        "trading_get_login_status",
        "find out | see | tell me",
        "whether i am signed in for trading | if my trading session is open | whether the broker knows me",
    ),
    case(
        "trading_login",
        "sign me in | get me signed in | open my session",
        "for trading as {username} with {password} | at the broker as {username}, secret {password} | "
        "to trade as {username} using {password}",
    ),
    case(
        "trading_logout",
        "sign me out | end my session | get me signed out",
        "at the broker | of the trading system | where i trade",
    ),
    case(
        "withdraw_funds",
        "take | pay out | move",
        "{amount} from my trading account | {amount} out of the balance at the broker | {amount} away from the broker",
    ),
)

SUFFIXES = (
    suffix("get_transaction_history", "from {start_date} on | since {start_date} | beginning on {start_date}"),
    suffix("get_transaction_history", "up to {end_date} | until {end_date} | ending on {end_date}"),
)
