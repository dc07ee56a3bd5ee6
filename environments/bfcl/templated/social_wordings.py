"""Define the wordings of the calls of TwitterAPI, MessageAPI and TicketAPI.

No wording holds the name of its own function, digits or quotes, which mark values.
"""

from __future__ import annotations

from environments.bfcl.templated.shapes import case, suffix

CASES = (
    # TwitterAPI
    case(
        "authenticate_twitter",
        "sign me in | get me signed in | open my session",
        "for tweeting as {username} with {password} | to tweet as {username}, secret {password} | "
        "at the tweet site as {username} using {password}",
    ),
    case(
        "comment",
        "reply | answer | respond",
        "with {comment_content} to the tweet {tweet_id} | {comment_content} below tweet {tweet_id} | "
        "to tweet {tweet_id} by saying {comment_content}",
    ),
    case(
        "follow_user",
        "subscribe to | keep up with | start to watch",
        "the account {username_to_follow} | whatever {username_to_follow} tweets | {username_to_follow} from now on",
    ),
    case(
        "get_tweet",
        "open | fetch | look up",
        "the tweet {tweet_id} | the one tweet with id {tweet_id} | what tweet {tweet_id} says",
    ),
    case(
        "get_tweet_comments",
        "read | collect | go through",
        "the replies to tweet {tweet_id} | what people answered to tweet {tweet_id} | "
        "every reply below tweet {tweet_id}",
    ),
    case(
        "get_user_stats",
        "count | total up | report",
        "followers, tweets of {username} | how many followers {username} has | the figures of the account {username}",
    ),
    case(
        "get_user_tweets",
        "gather | bring up | give me",
        "everything that {username} tweeted | all tweets by {username} | the timeline of {username}",
    ),
    case(
        "list_all_following",
        "name | tell me | write down",
        "the accounts that i follow | everybody i follow | whom i am subscribed to",
    ),
    case(
        "mention",
        "tag | call in | bring in",
        "{mentioned_usernames} at tweet {tweet_id} | the people {mentioned_usernames} below tweet {tweet_id} | "
        "for tweet {tweet_id} the accounts {mentioned_usernames}",
    ),
    case(
        "post_tweet",
        "publish | put out | announce",
        "the tweet {content} | {content} as a tweet | {content} to my followers",
    ),
    case(
        "posting_get_login_status",
        "find out | see | tell me",
        "whether i am signed in for tweeting | if my tweet session is open | whether the tweet site knows me",
    ),
    case(
        "retweet",
        "share | spread | pass on",
        "the tweet {tweet_id} again | tweet {tweet_id} with my followers | tweet {tweet_id} once more",
    ),
    case(
        "search_tweets",
        "search | look | hunt",
        "for tweets about {keyword} | for tweets that contain {keyword} | among tweets for {keyword}",
    ),
    case(
        "unfollow_user",
        "unsubscribe from | quit watching | drop",
        "the account {username_to_unfollow} | whatever {username_to_unfollow} tweets | "
        "{username_to_unfollow} from my feed",
    ),
    # MessageAPI
    case(
        "add_contact",
        "take | put | enter",
        "{user_name} into my contacts | the colleague {user_name} into the workspace | "
        "the new contact {user_name} in my list",
    ),
    case(
        "delete_message",
        "take back | withdraw | erase",
        "what i last wrote to {receiver_id} | the latest note to {receiver_id} | my newest text for {receiver_id}",
    ),
    case(
        "get_message_stats",
        "count | total up | report",
        "the messages that i have | how many messages went either way | the figures of my inbox",
    ),
    case(
        "get_user_id",
        "look up | find out | tell me",
        "the id of {user} | which id {user} has in the workspace | the workspace id that belongs to {user}",
    ),
    case(
        "list_users",
        "name | show | write down",
        "everybody in the workspace | the members of the workspace | who belongs to the workspace",
    ),
    case(
        "message_get_login_status",
        "find out | see | tell me",
        "whether i am signed in for messages | if my message session is open | whether the workspace knows me",
    ),
    case(
        "message_login",
        "sign me in | get me signed in | open my session",
        "for messages as {user_id} | in the workspace as {user_id} | to write messages under the id {user_id}",
    ),
    case(
        "search_messages",
        "search | look | hunt",
        "for messages about {keyword} | for messages that contain {keyword} | among my messages for {keyword}",
    ),
    case(
        "send_message",
        "write | text | dispatch",
        "{message} to {receiver_id} | the note {message} to the member {receiver_id} | "
        "to {receiver_id} the words {message}",
    ),
    case(
        "view_messages_sent",
        "show | go through | read back",
        "everything i wrote to others | all messages that i sent so far | my sent messages",
    ),
    # TicketAPI
    case(
        "close_ticket",
        "shut | put an end to | finish off",
        "the ticket {ticket_id} | ticket {ticket_id} for good | the case of ticket {ticket_id}",
    ),
    case(
        "create_ticket",
        "open | file | raise",
        "the ticket {title} | the new ticket {title} | one ticket called {title}",
    ),
    case(
        "edit_ticket",
        "change | correct | revise",
        "the ticket {ticket_id} by {updates} | ticket {ticket_id} so that it has {updates} | "
        "the fields of ticket {ticket_id} to {updates}",
    ),
    case(
        "get_ticket",
        "fetch | pull up | look at",
        "the ticket {ticket_id} | what ticket {ticket_id} says | the details of ticket {ticket_id}",
    ),
    case(
        "get_user_tickets",
        "show | go through | give me",
        "my tickets that are {status} | the tickets of mine with status {status} | what i filed that is {status}",
    ),
    case(
        "get_user_tickets",
        "show | go through | give me",
        "all my tickets | every ticket of mine | whatever tickets i filed",
    ),
    case(
        "logout",
        "sign me out | end my session | get me signed out",
        "of the ticket system | where the tickets are | at the ticket desk",
    ),
    case(
        "resolve_ticket",
        "settle | mark as solved | clear up",
        "the ticket {ticket_id} with the words {resolution} | ticket {ticket_id} by {resolution} | "
        "ticket {ticket_id}, saying {resolution}",
    ),
    case(
        "ticket_get_login_status",
        "find out | see | tell me",
        "whether i am signed in for tickets | if my ticket session is open | whether the ticket desk knows me",
    ),
    case(
        "ticket_login",
        "sign me in | get me signed in | open my session",
        "for tickets as {username} with {password} | at the ticket desk as {username}, secret {password} | "
        "in the ticket system as {username} using {password}",
    ),
)

SUFFIXES = (
    suffix("post_tweet", "under the hashtags {tags} | with hashtags {tags} | tagged {tags}"),
    suffix("post_tweet", "naming {mentions} | calling out to {mentions} | for the eyes of {mentions}"),
    suffix("create_ticket", "that explains {description} | with the explanation {description} | saying {description}"),
    suffix("create_ticket", "at priority {priority} | of urgency {priority} | with priority {priority}"),
)
