"""The tools of the training conversations: declarations, questions, calls, results and answers.

Names of tools and of their parameters are drawn from several spellings, so that a call must be read off the
declaration and cannot be learnt by heart.
"""

from words import CITIES, COLORS, FRUITS, NAMES, PLACES, THINGS, WORDS

STRING, INTEGER, NUMBER, BOOLEAN = ({"type": t} for t in ("string", "integer", "number", "boolean"))


def tool(name, description, properties):
    parameters = {"type": "object", "properties": properties, "required": sorted(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def case(declared, question, arguments, result, answer):
    return {"tool": declared, "question": question, "arguments": arguments, "result": result, "answer": answer}


def weather(rng):
    name, city_key = rng.choice(["get_weather", "weather", "weather_now"]), rng.choice(["city", "place", "location"])
    city, degrees = rng.choice(CITIES), rng.randint(1, 35)
    question = rng.choice(["What is the weather in {}?", "How warm is it in {}?", "Tell me the weather in {}."])
    return case(tool(name, "Weather of a city", {city_key: STRING}), question.format(city), {city_key: city},
                {"degrees": degrees}, f"It is {degrees} degrees in {city}.")  # fmt: skip


def timer(rng):
    name, key = rng.choice(["set_timer", "timer", "start_timer"]), rng.choice(["minutes", "duration", "time"])
    n = rng.randint(2, 99)
    question = rng.choice(["Set a timer for {} minutes.", "Start a timer of {} minutes.", "Wake me in {} minutes."])
    return case(tool(name, "Start a timer", {key: INTEGER}), question.format(n), {key: n}, "ok",
                f"The timer is set for {n} minutes.")  # fmt: skip


def message(rng):
    name = rng.choice(["send_message", "send", "write_to"])
    to, text = rng.choice(["to", "name", "person"]), rng.choice(["text", "message", "body"])
    who, words = rng.choice(NAMES), " ".join(rng.sample(WORDS, rng.randint(1, 4)))
    question = rng.choice(["Send {} the message: {}", "Write to {}: {}", "Tell {} this: {}"]).format(who, words)
    return case(tool(name, "Send a message", {to: STRING, text: STRING}), question, {to: who, text: words}, "sent",
                f"I sent the message to {who}.")  # fmt: skip


def light(rng):
    name, on = rng.choice(["set_light", "light", "switch_light"]), rng.random() < 0.5
    room_key, on_key = rng.choice(["room", "place", "where"]), rng.choice(["on", "state", "enabled"])
    room, word = rng.choice(PLACES), "on" if on else "off"
    question = rng.choice(["Turn {w} the light in the {r}.", "Switch the {r} light {w}.", "Light {w} in the {r}."])
    return case(tool(name, "Switch a light", {room_key: STRING, on_key: BOOLEAN}), question.format(w=word, r=room),
                {room_key: room, on_key: on}, "ok", f"The light in the {room} is {word}.")  # fmt: skip


def shop(rng):
    name, key = rng.choice(["buy", "order", "add_items"]), rng.choice(["items", "list", "things"])
    items = rng.sample(FRUITS + THINGS, rng.randint(1, 4))
    said = items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]
    question = rng.choice(["Buy {}.", "Please order {}.", "Put {} on the list."])
    return case(tool(name, "Buy items", {key: {"type": "array", "items": STRING}}), question.format(said), {key: items},
                {"count": len(items)}, f"I ordered {len(items)} item{'s' if len(items) > 1 else ''}.")  # fmt: skip


def mean(rng):
    name, key = rng.choice(["mean", "average", "get_mean"]), rng.choice(["numbers", "values", "data"])
    n = [rng.randint(0, 99) for _ in range(rng.randint(2, 4))]
    result = round(sum(n) / len(n), 1)
    question = rng.choice(["What is the mean of {}?", "Give the average of {}.", "Average these: {}"])
    said = question.format(", ".join(map(str, n)))
    return case(tool(name, "Mean of numbers", {key: {"type": "array", "items": NUMBER}}), said, {key: n},
                {"value": result}, f"The mean is {result}.")  # fmt: skip


def person(rng):
    name, key = rng.choice(["add_user", "create_user", "new_user"]), rng.choice(["user", "person", "data"])
    who, age, city = rng.choice(NAMES), rng.randint(18, 90), rng.choice(CITIES)
    inner = {"name": STRING, "age": INTEGER} | ({"city": STRING} if rng.random() < 0.5 else {})
    arguments = {"name": who, "age": age} | ({"city": city} if "city" in inner else {})
    said = f"{who}, {age} years old" + (f", from {city}" if "city" in inner else "")
    question = rng.choice(["Add the user {}.", "Create a user: {}.", "New user: {}."]).format(said)
    return case(tool(name, "Add a user", {key: {"type": "object", "properties": inner}}), question, {key: arguments},
                {"id": rng.randint(10, 999)}, f"{who} was added.")  # fmt: skip


def paint(rng):
    name = rng.choice(["paint", "set_color", "color"])
    what, how, deep = rng.choice(["item", "thing", "object"]), rng.choice(["color", "paint"]), rng.random() < 0.3
    thing, color = rng.choice(THINGS), rng.choice(COLORS)
    question = rng.choice(["Paint the {t} {c}.", "Make the {t} {c}.", "I want a {c} {t}."]).format(t=thing, c=color)
    properties, arguments = {what: STRING, how: STRING}, {what: thing, how: color}
    if deep:
        key = rng.choice(["job", "options"])
        properties, arguments = {key: {"type": "object", "properties": properties}}, {key: arguments}
    return case(tool(name, "Paint a thing", properties), question, arguments, "ok",
                f"The {thing} is {color} now.")  # fmt: skip


def price(rng):
    name, key = rng.choice(["get_price", "price", "find_price"]), rng.choice(["item", "product", "name"])
    thing, cost = rng.choice(THINGS + FRUITS), rng.randint(1, 99)
    question = rng.choice(["What does a {} cost?", "Price of a {}?", "How much is a {}?"]).format(thing)
    return case(tool(name, "Price of an item", {key: STRING}), question, {key: thing}, {"price": cost},
                f"A {thing} costs {cost} dollars.")  # fmt: skip


def alarm(rng):
    name, (h, m) = rng.choice(["set_alarm", "alarm", "wake_up"]), (rng.randint(0, 23), rng.randint(10, 59))
    hour, minute, daily = rng.choice(["hour", "h"]), rng.choice(["minute", "m"]), rng.choice([True, False, None])
    properties, arguments = {hour: INTEGER, minute: INTEGER}, {hour: h, minute: m}
    question = rng.choice(["Set an alarm for {}:{}", "Wake me at {}:{}", "Alarm at {}:{}"]).format(h, m)
    if daily is not None:
        properties, arguments = properties | {"daily": BOOLEAN}, arguments | {"daily": daily}
        question += " every day" if daily else " once"
    return case(tool(name, "Set an alarm", properties), question + ".", arguments, "ok",
                f"The alarm is set for {h}:{m}.")  # fmt: skip


CASES = [weather, timer, message, light, shop, mean, person, paint, price, alarm]
NO_TOOL = "I have no tool for that."


def draw(rng, offered):
    """(the case asked for, the cases of the other tools); `offered` tools in all."""
    cases = [maker(rng) for maker in rng.sample(CASES, offered)]
    return cases[0], cases[1:]


def draw_unfit(rng, offered):
    """(a question, the tools offered); no tool fits the question."""
    makers = rng.sample(CASES, offered + 1)
    return makers[0](rng)["question"], [maker(rng)["tool"] for maker in makers[1:]]
