# aotgen_add_model: a trained model as a library of an application's own build.
#
#   aotgen_add_model(<target> MODEL <file>
#                    [BOARD <name or path>]          as `aotgen boards list` has them
#                    [SHAPE <input=1x3x224x224>...]  of inputs that the file leaves open
#                    [DIM <name=N>...]               values of symbolic dimensions
#                    [JOURNAL <file>]                tuning journal
#                    [REQUANT tflm|litert] [IO_TYPE native|float] [THREADS <n>]
#                    [DEPENDS <file>...]             further files of the model, as external data of ONNX
#                    [OPTIONS <option of `aotgen compile`>...])
#
# makes the static library <target>, also called <target>::<target>, with the header <target>.h. The model is compiled when
# CMake configures, which `cmake --build` repeats after the model, the journal, the board's file or one of DEPENDS has
# changed; what comes out the same is not built again.
#
#   aotgen_add_bundle(<target> MODELS [<name>=]<file>...
#                     [SHARE_ARENA]                  the models never run at once: one arena for all
#                     [SHAPE <name:input=1x3x224x224>...] [DIM <name:dimension=N>...]
#                     ...                            the rest as above)
#
# makes one library of several models, with the header <target>.h and those of the models.
#
# Variables that matter, all optional:
#   AOTGEN_COMMAND    the program to call, or a list of it and its first arguments
#   AOTGEN_BOARD      the board where BOARD is left out; the toolchain files of our boards set it. Else it is "host".
#   <TARGET>_TOOLS    ON: also build <target>_test, _run and _bench, and let ctest check the model's test vectors
#   <TARGET>_DEVICE   ON: of a microcontroller's board, also build <target>_device, which answers `aotgen` over a serial line
#   <TARGET>_INSTALL  ON: also install the library, its header and its CMake package
cmake_minimum_required(VERSION 3.16)

get_filename_component(AOTGEN_FOLDER "${CMAKE_CURRENT_LIST_DIR}" DIRECTORY)
set(AOTGEN_FOLDER "${AOTGEN_FOLDER}" CACHE INTERNAL "Where aotgen is")

# Finds aotgen, once a configuration: the global properties AOTGEN_RUN, its command, and AOTGEN_VERSION, which is another one
# whenever its output may be.
function(_aotgen_find)
  get_property(known GLOBAL PROPERTY AOTGEN_RUN SET)
  if(known)
    return()
  endif()
  # A checkout's own environment or the one that this file was installed in, then what the shell would find.
  set(checkout FALSE)
  set(near "${AOTGEN_FOLDER}/../../bin")
  if(EXISTS "${AOTGEN_FOLDER}/aotgen/__init__.py")
    set(checkout TRUE)
    set(near "${AOTGEN_FOLDER}/.venv/bin")
  endif()
  find_program(AOTGEN_COMMAND aotgen HINTS "${near}" DOC "The aotgen program" NO_CMAKE_FIND_ROOT_PATH)
  set(run ${AOTGEN_COMMAND})
  set(remedy "`pip install` it again, or set AOTGEN_COMMAND to one that runs")
  if(NOT AOTGEN_COMMAND)
    if(NOT checkout)
      message(FATAL_ERROR "aotgen is not installed: `pip install aotgen`, or set AOTGEN_COMMAND to its program")
    endif()
    find_package(Python3 3.10 COMPONENTS Interpreter QUIET)
    if(NOT Python3_Interpreter_FOUND)
      message(FATAL_ERROR "aotgen needs Python 3.10 or newer: install it (Debian and Ubuntu: apt-get install python3), "
                          "or set Python3_EXECUTABLE, or set AOTGEN_COMMAND to an installed aotgen")
    endif()
    set(path "${AOTGEN_FOLDER}")
    if(NOT "$ENV{PYTHONPATH}" STREQUAL "")
      string(APPEND path ":$ENV{PYTHONPATH}")
    endif()
    set(run "${CMAKE_COMMAND}" -E env "PYTHONPATH=${path}" "${Python3_EXECUTABLE}" -m aotgen)
    set(remedy "`${Python3_EXECUTABLE} -m pip install ${AOTGEN_FOLDER}`, or set AOTGEN_COMMAND to an installed aotgen")
  endif()
  execute_process(COMMAND ${run} --version
    WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}"
    RESULT_VARIABLE status OUTPUT_VARIABLE version ERROR_VARIABLE why OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT status EQUAL 0)
    string(REGEX REPLACE "^(.*\n)?([^\n]+)\n*$" "\\2" why "${why}")
    string(REPLACE ";" " " shown "${run}")
    message(FATAL_ERROR "aotgen does not run (${shown}: ${why}): ${remedy}")
  endif()
  # A checkout changes between releases, too.
  if(checkout)
    file(GLOB_RECURSE sources
      "${AOTGEN_FOLDER}/aotgen/*.py" "${AOTGEN_FOLDER}/templates/*" "${AOTGEN_FOLDER}/board_support/*")
    set(newest 0)
    foreach(source IN LISTS sources)
      file(TIMESTAMP "${source}" time "%s" UTC)
      if(time GREATER newest)
        set(newest "${time}")
      endif()
    endforeach()
    string(APPEND version " of ${newest}")
  endif()
  set_property(GLOBAL PROPERTY AOTGEN_RUN ${run})
  set_property(GLOBAL PROPERTY AOTGEN_VERSION "${version}")
endfunction()

# Makes the folder `to` what `from` is. Files that are the same stay untouched, so that they are not built again.
function(_aotgen_update from to)
  file(GLOB_RECURSE old RELATIVE "${to}" "${to}/*")
  file(GLOB_RECURSE new RELATIVE "${from}" "${from}/*")
  if(old)
    list(REMOVE_ITEM old ${new})
  endif()
  foreach(name IN LISTS old)
    file(REMOVE "${to}/${name}")
  endforeach()
  foreach(name IN LISTS new)
    get_filename_component(parent "${to}/${name}" DIRECTORY)
    file(MAKE_DIRECTORY "${parent}")
    execute_process(COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${from}/${name}" "${to}/${name}"
      RESULT_VARIABLE status)
    if(NOT status EQUAL 0)
      message(FATAL_ERROR "cannot write ${to}/${name}")
    endif()
  endforeach()
endfunction()

function(aotgen_add_model target)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "MODEL;BOARD;JOURNAL;REQUANT;IO_TYPE;THREADS" "SHAPE;DIM;DEPENDS;OPTIONS")
  set(models "${ARG_MODEL}")
  _aotgen_add(${target} "aotgen_add_model(${target})" "MODEL <file>" compile --prefix)
endfunction()

function(aotgen_add_bundle target)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "SHARE_ARENA" "BOARD;JOURNAL;REQUANT;IO_TYPE;THREADS"
    "MODELS;SHAPE;DIM;DEPENDS;OPTIONS")
  set(models ${ARG_MODELS})
  _aotgen_add(${target} "aotgen_add_bundle(${target})" "MODELS <file>..." bundle --name)
endfunction()

# What both functions do, with their variables: `models` as they were given, and ARG_*. `needed` says in words what `models` are,
# `verb` is aotgen's, `name_option` the option that gives the library its name.
function(_aotgen_add target here needed verb name_option)
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "${here}: unknown argument ${ARG_UNPARSED_ARGUMENTS}")
  elseif(ARG_KEYWORDS_MISSING_VALUES)
    message(FATAL_ERROR "${here}: ${ARG_KEYWORDS_MISSING_VALUES} has no value")
  elseif(NOT models)
    message(FATAL_ERROR "${here}: ${needed} is missing")
  elseif(TARGET ${target})
    message(FATAL_ERROR "${here}: there is a target of that name already")
  endif()

  if(ARG_BOARD)
    set(board "${ARG_BOARD}")
  elseif(AOTGEN_BOARD)
    set(board "${AOTGEN_BOARD}")
  elseif(CMAKE_CROSSCOMPILING)
    message(FATAL_ERROR "${here}: the build is for another machine: name it by BOARD <board>, or set AOTGEN_BOARD")
  else()
    set(board host)
  endif()

  # The files that the result depends on.
  set(files)
  set(given)
  foreach(word IN LISTS models)
    set(name "")
    if(verb STREQUAL "bundle" AND word MATCHES "^([A-Za-z][A-Za-z0-9_]*=)(.+)$")
      set(name "${CMAKE_MATCH_1}")
      set(word "${CMAKE_MATCH_2}")
    endif()
    get_filename_component(model "${word}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_SOURCE_DIR}")
    list(APPEND files "${model}")
    list(APPEND given "${name}${model}")
  endforeach()
  if(board MATCHES "/|\\.toml$")
    get_filename_component(board "${board}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_SOURCE_DIR}")
    if(IS_DIRECTORY "${board}")
      set(board "${board}/board.toml")
    endif()
    list(APPEND files "${board}")
  endif()
  set(options)
  if(ARG_JOURNAL)
    get_filename_component(journal "${ARG_JOURNAL}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_SOURCE_DIR}")
    list(APPEND files "${journal}")
    list(APPEND options --journal "${journal}")
  endif()
  foreach(name IN LISTS ARG_DEPENDS)
    get_filename_component(name "${name}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_SOURCE_DIR}")
    list(APPEND files "${name}")
  endforeach()

  foreach(word IN LISTS ARG_SHAPE)
    list(APPEND options --shape "${word}")
  endforeach()
  foreach(word IN LISTS ARG_DIM)
    list(APPEND options --dim "${word}")
  endforeach()
  foreach(name REQUANT IO_TYPE THREADS)
    if(NOT "${ARG_${name}}" STREQUAL "")
      string(TOLOWER "--${name}" option)
      string(REPLACE "_" "-" option "${option}")
      list(APPEND options "${option}" "${ARG_${name}}")
    endif()
  endforeach()
  if(ARG_SHARE_ARENA)
    list(APPEND options --share-arena)
  endif()
  list(APPEND options ${ARG_OPTIONS})

  _aotgen_find()
  get_property(run GLOBAL PROPERTY AOTGEN_RUN)
  get_property(version GLOBAL PROPERTY AOTGEN_VERSION)
  set(wanted "${version};${given};${board};${options}")
  foreach(name IN LISTS files)
    if(NOT EXISTS "${name}" OR IS_DIRECTORY "${name}")
      message(FATAL_ERROR "${here}: there is no file ${name}")
    endif()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${name}")
    file(SHA256 "${name}" hash)
    list(APPEND wanted "${name}" "${hash}")
  endforeach()

  # The stamp says what the folder was made from. It is written last.
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/${target}_aotgen")
  set(stamp "${folder}.stamp")
  set(before "")
  if(EXISTS "${stamp}" AND EXISTS "${folder}/CMakeLists.txt")
    file(READ "${stamp}" before)
  endif()
  if(NOT before STREQUAL wanted)
    set(fresh "${folder}.new")
    file(REMOVE_RECURSE "${fresh}")
    execute_process(
      COMMAND ${run} ${verb} ${given} --board "${board}" -o "${fresh}" ${name_option} "${target}" ${options}
      WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}"
      RESULT_VARIABLE status OUTPUT_VARIABLE said OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT status EQUAL 0)
      string(REPLACE ";" " " shown "${given}")
      message(FATAL_ERROR "${here}: aotgen does not compile ${shown}; it says why above")
    endif()
    file(REMOVE "${stamp}")
    _aotgen_update("${fresh}" "${folder}")
    file(REMOVE_RECURSE "${fresh}")
    file(WRITE "${stamp}" "${wanted}")
    string(REGEX REPLACE "^model .*\n" "" said "${said}") # the table of a bundle
    string(REPLACE "${fresh}" "${target}" said "${said}")
    message(STATUS "aotgen: ${said}")
  endif()
  add_subdirectory("${folder}" "${target}_build")
endfunction()
