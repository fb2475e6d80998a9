"""The words the tasks are made of."""

NAMES = """Ann Ben Carl Dana Emma Finn Gina Hugo Ida Jack Kate Leo Mia Nora Omar Paul Rosa Sam Tina Uma Vera Will Yara
Zoe Adam Bella Clara David Elena Felix Grace Henry Iris Jonas Karl Lucy Mark Nina Oscar Petra Ruth Simon Tom
Victor""".split()

COLORS = "red blue green black white yellow orange purple brown pink gray silver golden".split()
ANIMALS = "cat dog horse cow sheep goat pig duck mouse rabbit fox bear lion tiger wolf frog bird fish snake owl".split()
FRUITS = "apple pear plum peach grape lemon cherry melon banana mango fig kiwi".split()
THINGS = """box book lamp chair table cup plate spoon knife bag coat hat shoe ring key door window bed clock phone pen
paper letter map boat car train bike wheel stone rope ball bell drum flag tent bottle basket mirror hammer""".split()
PLACES = "kitchen garden office bedroom garage hall library school market station park bridge castle tower farm".split()
VERBS = "run walk sit stand jump read write sing play cook eat drink sleep open close find give take make see".split()
PLAIN = """the a small big old new good warm cold long short fast slow day night year time water fire wind rain snow sun
moon star tree leaf road river hill sea sand song word name home house city friend child man woman hand head eye
happy quiet bright deep high low early late light dark soft hard clean empty full open free round flat""".split()
WORDS = sorted(set(COLORS + ANIMALS + FRUITS + THINGS + PLACES + VERBS + PLAIN))
JOBS = "teacher doctor baker farmer painter driver nurse pilot writer cook sailor judge".split()

CAPITALS = dict(
    pair.split(":")
    for pair in """France:Paris Germany:Berlin Italy:Rome Spain:Madrid Portugal:Lisbon Austria:Vienna Poland:Warsaw
Greece:Athens Norway:Oslo Sweden:Stockholm Finland:Helsinki Denmark:Copenhagen Ireland:Dublin Belgium:Brussels
Hungary:Budapest Romania:Bucharest Bulgaria:Sofia Croatia:Zagreb Serbia:Belgrade Ukraine:Kyiv Russia:Moscow
Turkey:Ankara Egypt:Cairo Morocco:Rabat Kenya:Nairobi Ghana:Accra Nigeria:Abuja Senegal:Dakar Angola:Luanda
Japan:Tokyo China:Beijing India:Delhi Thailand:Bangkok Vietnam:Hanoi Nepal:Kathmandu Iran:Tehran Iraq:Baghdad
Israel:Jerusalem Jordan:Amman Lebanon:Beirut Canada:Ottawa Cuba:Havana Peru:Lima Chile:Santiago Brazil:Brasilia
Colombia:Bogota Ecuador:Quito Uruguay:Montevideo Australia:Canberra Estonia:Tallinn Latvia:Riga Lithuania:Vilnius
Switzerland:Bern Netherlands:Amsterdam England:London Scotland:Edinburgh Mongolia:Ulaanbaatar Indonesia:Jakarta
Philippines:Manila Pakistan:Islamabad Iceland:Reykjavik""".split()
)
CITIES = sorted(CAPITALS.values())

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
MONTH_DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()

EMOJI = "😀 😂 😍 😎 😢 😡 👍 👎 👋 🙏 🎉 🎁 🔥 ⭐ 🌍 🌙 ☀️ 🌈 🍎 🍕 🍰 ☕ 🐱 🐶 🐟 🌳 🌹 🚗 🚀 ⚽ 🎵 📚 💡 ❤️ 💙 ✅ ❌ 🏠 ⏰ 🔑".split()
FOREIGN = """café naïve über Zürich señor garçon façade piñata smörgås crème Öl Ärger año déjà été fête Łódź Kraków
привет мир дом да нет 你好 世界 東京 日本 水 火 γεια καλημέρα مرحبا שלום 안녕""".split()

SYSTEMS = ["You are a helpful assistant.", "You are terse.", "Be brief.", "Answer the question.", "Help the user.",
           "You answer short questions.", "Be polite and exact."]  # fmt: skip
