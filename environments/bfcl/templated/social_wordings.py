"""Define the wordings of the calls of TwitterAPI, MessageAPI and TicketAPI.

No wording holds the name of its own function, digits or quotes, which mark values.
"""

from __future__ import annotations

from environments.bfcl.templated.shapes import Case, Suffix, absent, case, given, suffix

CASES: dict[str, tuple[Case, ...]] = {
    # TwitterAPI
    "authenticate_twitter": (
        case(
            "sign me in | get me signed in | open my session",
            "for tweeting as {username} with {password} | to tweet as {username}, secret {password} | "
            "at the tweet site as {username} using {password}",
        ),
    ),
    "comment": (
        case(
            "reply | answer | respond",
            "with {comment_content} to the tweet {tweet_id} | {comment_content} below tweet {tweet_id} | "
            "to tweet {tweet_id} by saying {comment_content}",
        ),
    ),
    "follow_user": (
        case(
            "subscribe to | keep up with | start to watch",
            "the account {username_to_follow} | whatever {username_to_follow} tweets | "
            "{username_to_follow} from now on",
        ),
    ),
    "get_tweet": (
        case(
            "open | fetch | look up",
            "the tweet {tweet_id} | the one tweet with id {tweet_id} | what tweet {tweet_id} says",
        ),
    ),
    "get_tweet_comments": (
        case(
            "read | collect | go through",
            "the replies to tweet {tweet_id} | what people answered to tweet {tweet_id} | "
            "every reply below tweet {tweet_id}",
        ),
    ),
    "get_user_stats": (
        case(
            "count | total up | report",
            "followers, tweets of {username} | how many followers {username} has | "
            "the figures of the account {username}",
        ),
    ),
    "get_user_tweets": (
        case(
            "gather | bring up | give me",
            "everything that {username} tweeted | all tweets by {username} | the timeline of {username}",
        ),
    ),
    "list_all_following": (
        case(
            "name | tell me | write down",
            "the accounts that i follow | everybody i follow | whom i am subscribed to",
        ),
    ),
    "mention": (
        case(
            "tag | call in | bring in",
            "{mentioned_usernames} at tweet {tweet_id} | the people {mentioned_usernames} below tweet {tweet_id} | "
            "for tweet {tweet_id} the accounts {mentioned_usernames}",
        ),
    ),
    "post_tweet": (
        case(
            "publish | put out | announce",
            "the tweet {content} | {content} as a tweet | {content} to my followers",
        ),
    ),
    "posting_get_login_status": (
        case(
            "find out | see | tell me",
            "whether i am signed in for tweeting | if my tweet session is open | whether the tweet site knows me",
        ),
    ),
    "retweet": (
        case(
            "share | spread | pass on",
            "the tweet {tweet_id} again | tweet {tweet_id} with my followers | tweet {tweet_id} once more",
        ),
    ),
    "search_tweets": (
        case(
            "search | look | hunt",
            "for tweets about {keyword} | for tweets that contain {keyword} | among tweets for {keyword}",
        ),
    ),
    "unfollow_user": (
        case(
            "unsubscribe from | quit watching | drop",
            "the account {username_to_unfollow} | whatever {username_to_unfollow} tweets | "
            "{username_to_unfollow} from my feed",
        ),
    ),
    # MessageAPI
    "add_contact": (
        case(
            "take | put | enter",
            "{user_name} into my contacts | the colleague {user_name} into the workspace | "
            "the new contact {user_name} in my list",
        ),
    ),
    "delete_message": (
        case(
            "take back | withdraw | erase",
            "what i last wrote to {receiver_id} | the latest note to {receiver_id} | my newest text for {receiver_id}",
        ),
    ),
    "get_message_stats": (
        case(
            "count | total up | report",
            "the messages that i have | how many messages went either way | the figures of my inbox",
        ),
    ),
    "get_user_id": (
        case(
            "look up | find out | tell me",
            "the id of {user} | which id {user} has in the workspace | the workspace id that belongs to {user}",
        ),
    ),
    "list_users": (
        case(
            "name | show | write down",
            "everybody in the workspace | the members of the workspace | who belongs to the workspace",
        ),
    ),
    "message_get_login_status": (
        case(
            "find out | see | tell me",
            "whether i am signed in for messages | if my message session is open | whether the workspace knows me",
        ),
    ),
    "message_login": (
        case(
            "sign me in | get me signed in | open my session",
            "for messages as {user_id} | in the workspace as {user_id} | to write messages under the id {user_id}",
        ),
    ),
    "search_messages": (
        case(
            "search | look | hunt",
            "for messages about {keyword} | for messages that contain {keyword} | among my messages for {keyword}",
        ),
    ),
    "send_message": (
        case(
            "write | text | dispatch",
            "{message} to {receiver_id} | the note {message} to the member {receiver_id} | "
            "to {receiver_id} the words {message}",
        ),
    ),
    "view_messages_sent": (
        case(
            "show | go through | read back",
            "everything i wrote to others | all messages that i sent so far | my sent messages",
        ),
    ),
    # TicketAPI
    "close_ticket": (
        case(
            "shut | put an end to | finish off",
            "the ticket {ticket_id} | ticket {ticket_id} for good | the case of ticket {ticket_id}",
        ),
    ),
    "create_ticket": (
        case(
            "open | file | raise",
            "the ticket {title} | the new ticket {title} | one ticket called {title}",
        ),
    ),
    "edit_ticket": (
        case(
            "change | correct | revise",
            "the ticket {ticket_id} by {updates} | ticket {ticket_id} so that it has {updates} | "
            "the fields of ticket {ticket_id} to {updates}",
        ),
    ),
    "get_ticket": (
        case(
            "fetch | pull up | look at",
            "the ticket {ticket_id} | what ticket {ticket_id} says | the details of ticket {ticket_id}",
        ),
    ),
    "get_user_tickets": (
        case(
            "show | go through | give me",
            "my tickets that are {status} | the tickets of mine with status {status} | what i filed that is {status}",
            given("status"),
        ),
        case(
            "show | go through | give me",
            "all my tickets | every ticket of mine | whatever tickets i filed",
            absent("status"),
        ),
    ),
    "logout": (
        case(
            "sign me out | end my session | get me signed out",
            "of the ticket system | where the tickets are | at the ticket desk",
        ),
    ),
    "resolve_ticket": (
        case(
            "settle | mark as solved | clear up",
            "the ticket {ticket_id} with the words {resolution} | ticket {ticket_id} by {resolution} | "
            "ticket {ticket_id}, saying {resolution}",
        ),
    ),
    "ticket_get_login_status": (
        case(
            "find out | see | tell me",
            "whether i am signed in for tickets | if my ticket session is open | whether the ticket desk knows me",
        ),
    ),
    "ticket_login": (
        case(
            "sign me in | get me signed in | open my session",
            "for tickets as {username} with {password} | at the ticket desk as {username}, secret {password} | "
            "in the ticket system as {username} using {password}",
        ),
    ),
}

SUFFIXES: dict[str, tuple[Suffix, ...]] = {
    "post_tweet": (
        suffix(given("tags"), "under the hashtags {tags} | with hashtags {tags} | tagged {tags}"),
        suffix(given("mentions"), "naming {mentions} | calling out to {mentions} | for the eyes of {mentions}"),
    ),
    "create_ticket": (
        suffix(
            given("description"),
            "that explains {description} | with the explanation {description} | saying {description}",
        ),
        suffix(given("priority"), "at priority {priority} | of urgency {priority} | with priority {priority}"),
    ),
}
